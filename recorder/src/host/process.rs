//! What the guest asks the operating system about its own process, and the two moments it must
//! not miss: fork and exit.
//!
//! A child is told from its parent by a page that the kernel wipes in every child, however it was
//! made; where a kernel cannot do that (before 4.14), a fork handler does for `fork` at least.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8};

use memtape_core::identity::{COMMAND_BYTES_MAX, Identity, cut};

use crate::host::symbols;
use crate::writer::state;

unsafe extern "C" {
    /// glibc: like `atexit`, with the exit status. Not in the libc crate.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// A byte and a pointer on a page of their own, zero in every child.
#[repr(C, align(4096))]
pub(crate) struct OwnPage<T> {
    pub(crate) state: AtomicU8,
    /// Beside the state: the hot path looks at one cache line.
    pub(crate) pointer: AtomicPtr<T>,
    rest: [u8; PAGE_BYTES - 16],
}

impl<T> OwnPage<T> {
    /// Zero, as in a child.
    pub(crate) const fn zero() -> Self {
        let pointer = AtomicPtr::new(std::ptr::null_mut());
        Self { state: AtomicU8::new(0), pointer, rest: [0; PAGE_BYTES - 16] }
    }

    /// From now on a child finds both zero; false where the kernel cannot do that.
    pub(crate) fn wipe_in_children(&'static self) -> bool {
        let start = (&raw const *self).cast_mut().cast();
        // SAFETY: the page is this value's alone, and changes only in children.
        unsafe { libc::madvise(start, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0 }
    }
}

/// Asks to be told of fork and exit; once, when recording starts.
pub(crate) fn watch() {
    // SAFETY: both functions are plain functions of this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        on_exit(at_exit, std::ptr::null_mut());
    }
}

/// What tells the calling thread from all others that live: the address of its control block, in
/// one instruction.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: the first word of the control block is its own address (ELF's thread-local storage
    // for x86-64 says so); it is read and nothing else.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(pure, readonly, nostack));
    }
    pointer
}

/// The same where there is no such instruction.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn thread_pointer() -> u64 {
    thread_local! {
        static HERE: u64 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here) as u64)
}

/// A child owns neither the tape nor the lock: it is detached before it runs anything.
extern "C" fn in_child() {
    state::detach();
}

extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    state::seal(status);
}

/// Copies of this library in one process find each other by this name.
#[unsafe(no_mangle)]
pub(crate) static MEMTAPE_RECORDER: u64 = 1;

/// How this library came into the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// As a library of its own, and it is the only one or stands in front.
    Preloaded,
    /// As a part of the program.
    Linked,
    /// Another copy stands in front of this one.
    Second,
}

/// How this library came into the process.
pub(crate) fn place() -> Place {
    // The dynamic linker gives the first that it loaded, also to the copies behind it. A program
    // does not export its own.
    let first = symbols::global(c"MEMTAPE_RECORDER");
    if first.is_null() {
        Place::Linked
    } else if library_of(first) == library_of(in_child as *const c_void) {
        Place::Preloaded
    } else {
        Place::Second
    }
}

/// Where the library that holds this address was loaded.
fn library_of(address: *const c_void) -> usize {
    // SAFETY: all-zero is a valid Dl_info for the call to fill; any address may be asked about.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(address, &raw mut about);
        about.dli_fbase as usize
    }
}

/// Runs `work`, in which a file may grow beyond the process's RLIMIT_FSIZE: that is an error to
/// handle, but the kernel also sends a signal that ends the process.
pub(crate) fn surviving_file_limits<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: the sets are local; all-zero is valid for each, and the old mask is restored. What
    // is taken back is the signal of this thread's own `work`: one that was waiting stays.
    unsafe {
        let mut size: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut waiting: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut size);
        libc::sigaddset(&raw mut size, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const size, &raw mut before);
        libc::sigpending(&raw mut waiting);
        let result = work();
        if libc::sigismember(&raw const waiting, libc::SIGXFSZ) == 0 {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const size, std::ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

/// Name of the calling thread, without its trailing zeros.
pub(crate) fn thread_name() -> ThreadName {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    ThreadName { name, length }
}

/// A thread's name.
pub(crate) struct ThreadName {
    name: [u8; 16],
    length: usize,
}

impl std::ops::Deref for ThreadName {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.name.get(..self.length).unwrap_or_default()
    }
}

/// Who this process is.
pub(crate) fn identity() -> Identity {
    let mut identity = Identity::from_environment(|name| std::env::var(name).ok());
    identity.host = read_text("/proc/sys/kernel/hostname").trim().to_string();
    let command = read_text("/proc/self/cmdline").replace('\0', " ");
    identity.command = cut(command.trim(), COMMAND_BYTES_MAX).to_string();
    identity
}

/// Inode of this process's pid namespace; 0 when it cannot be told.
pub(crate) fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// The kernel's boot id; zeros when it cannot be told.
pub(crate) fn boot_id() -> [u64; 2] {
    let text = read_text("/proc/sys/kernel/random/boot_id").replace('-', "");
    let half = |range| text.get(range).and_then(|part| u64::from_str_radix(part, 16).ok());
    [half(0..16).unwrap_or(0), half(16..32).unwrap_or(0)]
}

fn read_text(path: &str) -> String {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}
