//! Reading the interpreter's memory: frames, code objects, strings.
//!
//! All of it belongs to the calling thread's own frame chain, which cannot change while the thread
//! is inside C. Reads are volatile-free plain loads at offsets from `memtape_core::python`; the
//! type pointers of code objects and strings are compared before anything inside them is believed.

/// An address in this process that holds an object of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) usize);

impl Address {
    /// False for null and for values that cannot be an object's address.
    #[inline(always)]
    pub(crate) fn is_plausible(self) -> bool {
        self.0 > 0xffff && self.0 & 7 == 0
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
