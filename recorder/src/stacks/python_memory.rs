//! Reads the interpreter's memory: frames, code objects, strings.
//!
//! [`Address`] reads directly. It reads the calling thread's own frame chain, which cannot change
//! while the thread is inside C, and only after [`Careful`] has walked the same chain. Careful
//! reads go through the kernel, which answers EFAULT where a direct read would crash: a few bytes
//! are written into a pipe and read back from it. They are slow and need two descriptors, so only
//! the check of the layout uses them.

use std::ffi::c_int;

/// An address in this process that holds an object of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) usize);

impl Address {
    /// False for null and for values that cannot be an object's address.
    #[inline(always)]
    pub(crate) fn is_plausible(self) -> bool {
        self.0 > 0xffff && self.0 & 7 == 0
    }

    /// The address without its tag bits.
    #[inline(always)]
    pub(crate) fn without(self, tag: usize) -> Self {
        Self(self.0 & !tag)
    }

    /// The pointer-size value at an offset.
    ///
    /// # Safety
    /// There must be a live object here that reaches that far.
    #[inline(always)]
    pub(crate) unsafe fn pointer_at(self, offset: usize) -> Address {
        // SAFETY: the caller's promise.
        Address(unsafe { std::ptr::read_unaligned((self.0 + offset) as *const usize) })
    }

    /// The 32-bit value at an offset.
    ///
    /// # Safety
    /// As for [`Self::pointer_at`].
    #[inline(always)]
    pub(crate) unsafe fn u32_at(self, offset: usize) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::read_unaligned((self.0 + offset) as *const u32) }
    }

    /// The byte at an offset.
    ///
    /// # Safety
    /// As for [`Self::pointer_at`].
    #[inline(always)]
    pub(crate) unsafe fn u8_at(self, offset: usize) -> u8 {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::read((self.0 + offset) as *const u8) }
    }

    /// Bytes from an offset on.
    ///
    /// # Safety
    /// As for [`Self::pointer_at`], for as long as the slice is used.
    pub(crate) unsafe fn bytes_at<'a>(self, offset: usize, length: usize) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts((self.0 + offset) as *const u8, length) }
    }
}

/// Reads that fail where there is no memory.
pub(crate) struct Careful {
    reading: c_int,
    writing: c_int,
}

impl Careful {
    /// Opens the pipe. `None` when the process has no free descriptors.
    pub(crate) fn new() -> Option<Self> {
        let mut ends = [-1; 2];
        // SAFETY: the array has room for the two descriptors.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let [reading, writing] = ends;
        (made == 0).then_some(Self { reading, writing })
    }

    /// The bytes at an address, if there are any.
    pub(crate) fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        const { assert!(N <= 4096, "what fits into a pipe at once") };
        let mut bytes = [0; N];
        // SAFETY: the kernel checks the address and reads; it answers EFAULT where nothing is.
        let written = unsafe { libc::write(self.writing, at as *const _, N) };
        if written != N as isize {
            self.drain(written);
            return None;
        }
        // SAFETY: the buffer has room for what is asked for.
        let read = unsafe { libc::read(self.reading, bytes.as_mut_ptr().cast(), N) };
        (read == N as isize).then_some(bytes)
    }

    /// Empties the pipe after a partial write.
    fn drain(&self, written: isize) {
        for _ in 0..written.max(0) {
            let mut byte = 0u8;
            // SAFETY: the buffer has room for one byte.
            unsafe { libc::read(self.reading, (&raw mut byte).cast(), 1) };
        }
    }

    /// Whether the word at an address can be written: it is given the value that it has.
    pub(crate) fn is_writable(&self, at: usize) -> bool {
        const WORD: usize = size_of::<usize>();
        // SAFETY: the kernel checks the address and reads.
        let written = unsafe { libc::write(self.writing, at as *const _, WORD) };
        // SAFETY: the kernel checks the address and stores the bytes that are there already.
        let is_writable = written == WORD as isize
            && unsafe { libc::read(self.reading, at as *mut _, WORD) } == WORD as isize;
        if !is_writable {
            self.drain(written);
        }
        is_writable
    }

    pub(crate) fn pointer(&self, at: usize) -> Option<Address> {
        Some(Address(usize::from_ne_bytes(self.read(at)?)))
    }

    pub(crate) fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.read(at)?))
    }

    pub(crate) fn u8(&self, at: usize) -> Option<u8> {
        self.read::<1>(at).map(|[byte]| byte)
    }
}

impl Drop for Careful {
    fn drop(&mut self) {
        for end in [self.reading, self.writing] {
            // SAFETY: the descriptor is ours and is closed once.
            unsafe { libc::close(end) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn careful_reads_see_mapped_memory_and_survive_unmapped_memory() {
        let careful = Careful::new().expect("a pipe");
        let value = 0x1122_3344_5566_7788usize;
        let mut word = value;
        let at = (&raw mut word) as usize;
        assert_eq!(careful.pointer(at), Some(Address(value)));
        assert_eq!(careful.pointer(8), None);
        assert_eq!(careful.pointer(usize::MAX - 4), None);
        assert!(careful.is_writable(at));
        assert_eq!(word, value);
        let constant: &'static [u8; 16] = b"0123456789abcdef";
        assert!(!careful.is_writable(constant.as_ptr() as usize), "read-only memory");
        assert_eq!(careful.u8(constant.as_ptr() as usize), Some(b'0'), "the pipe is empty again");
    }

    #[test]
    fn memory_that_ends_in_the_middle_is_not_read() {
        // SAFETY: a fresh mapping of two pages, the second of which is taken back.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ, flags, -1, 0);
            assert_eq!(libc::munmap(page.byte_add(4096), 4096), 0);
            page as usize
        };
        let careful = Careful::new().expect("a pipe");
        assert_eq!(careful.pointer(page + 4096 - 4), None);
        assert_eq!(careful.pointer(page + 4096 - 8), Some(Address(0)), "nothing was left behind");
    }
}
