//! Threads and their signals.

use std::ffi::c_int;

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// Every signal.
    pub(crate) fn all() -> Self {
        // SAFETY: all-zero is a valid set, which the call fills.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut set);
            Self(set)
        }
    }

    /// A set of one signal.
    pub(crate) fn only(signal: c_int) -> Self {
        // SAFETY: all-zero is a valid set, which the calls change.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            Self(set)
        }
    }

    /// The set without a signal.
    pub(crate) fn without(mut self, signal: c_int) -> Self {
        // SAFETY: the set is valid.
        unsafe { libc::sigdelset(&raw mut self.0, signal) };
        self
    }

    /// Runs `work` while the calling thread blocks these signals, too.
    pub(crate) fn blocked<R>(self, work: impl FnOnce() -> R) -> R {
        self.masked(libc::SIG_BLOCK, work)
    }

    fn masked<R>(self, how: c_int, work: impl FnOnce() -> R) -> R {
        // SAFETY: the sets are local, and the old mask is restored.
        unsafe {
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(how, &raw const self.0, &raw mut before);
            let result = work();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            result
        }
    }
}

/// Starts a thread that takes none of the program's signals. False when it cannot be started.
pub(crate) fn spawn(name: &str, stack_bytes: usize, work: fn()) -> bool {
    // A new thread inherits the mask of its maker. SIGBUS stays: the thread touches the tape.
    let start = || {
        let thread = std::thread::Builder::new().name(name.into()).stack_size(stack_bytes);
        thread.spawn(work).is_ok()
    };
    Signals::all().without(libc::SIGBUS).masked(libc::SIG_SETMASK, start)
}

/// Runs `work`, in which a file may grow beyond the process's RLIMIT_FSIZE: the call then fails,
/// and the signal that the kernel also sends, which would end the process, is taken back.
pub(crate) fn without_file_limit_signal<R>(work: impl FnOnce() -> R) -> R {
    let signal = Signals::only(libc::SIGXFSZ);
    signal.blocked(|| {
        // SAFETY: all-zero is a valid set, which the call fills.
        let mut waiting: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is local.
        unsafe { libc::sigpending(&raw mut waiting) };
        let result = work();
        // SAFETY: the sets are local. A signal that was pending before `work` stays.
        unsafe {
            if libc::sigismember(&raw const waiting, libc::SIGXFSZ) == 0 {
                let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                libc::sigtimedwait(&raw const signal.0, std::ptr::null_mut(), &raw const at_once);
            }
        }
        result
    })
}

/// The address of the calling thread's control block, which no other living thread has.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: the first word of the control block is its own address (ELF's thread-local storage
    // for x86-64); the word is only read.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(pure, readonly, nostack));
    }
    pointer
}

/// The address of a thread-local value, where no instruction gives the control block.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn thread_pointer() -> u64 {
    thread_local! {
        static HERE: u64 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here) as u64)
}

/// The calling thread's name.
pub(crate) struct ThreadName {
    name: [u8; 16],
    length: usize,
}

impl ThreadName {
    /// The calling thread's name, from the kernel.
    pub(crate) fn current() -> Self {
        let mut name = [0u8; 16];
        // SAFETY: PR_GET_NAME writes at most 16 bytes.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Self { name, length }
    }

    /// The bytes of a name, without trailing zeros.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.name.get(..self.length).unwrap_or_default()
    }
}
