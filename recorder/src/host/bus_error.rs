//! Survives a tape that is truncated while it is being written.
//!
//! The file's user and root can truncate it, in a clean-up script for instance. Touching a page
//! that is gone raises SIGBUS, which ends the process. So the recorder handles SIGBUS at addresses
//! of its tape: it maps anonymous memory in the tape's place and turns itself off. The agent sees
//! that the tape was cut.
//!
//! Every other SIGBUS goes to the handler that was there before. Not covered are threads that block
//! SIGBUS, and handlers that are installed later and pass nothing on.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use crate::host::errno::keeping_errno;

type Handler = unsafe extern "C" fn(c_int);
type HandlerWithInfo = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Address range of the tape, its process, and the previous handler of the signal.
struct Watched {
    start: usize,
    bytes: usize,
    pid: u32,
    before: libc::sigaction,
    tape_is_gone: fn(),
}

static WATCHED: OnceLock<Watched> = OnceLock::new();

/// Starts to handle bus errors on the tape, once. The handler calls `tape_is_gone`, which may do
/// only what a signal handler may.
pub(crate) fn watch(words: &'static [AtomicU64], tape_is_gone: fn()) {
    // SAFETY: all-zero is a valid sigaction, and the handler lives as long as the process. What it
    // needs is in place before it is installed.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before);
        let start = words.as_ptr() as usize;
        let (bytes, pid) = (size_of_val(words), std::process::id());
        let watched = Watched { start, bytes, pid, before, tape_is_gone };
        if WATCHED.set(watched).is_err() {
            return;
        }
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut());
    }
}

/// The handler. Async-signal-safe.
unsafe extern "C" fn on_bus_error(
    signal: c_int,
    about: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let Some(watched) = WATCHED.get() else { return };
    // SAFETY: the kernel's own arguments.
    unsafe {
        let is_fault = (*about).si_code > 0;
        let address = (*about).si_addr() as usize;
        if !(is_fault && keeping_errno(|| watched.replace_tape(address))) {
            watched.pass_on(signal, about, context);
        }
    }
}

impl Watched {
    /// True when the address is the tape's and other memory is mapped there now.
    fn replace_tape(&self, address: usize) -> bool {
        let is_ours = (self.start..self.start + self.bytes).contains(&address)
            && self.pid == std::process::id();
        if !is_ours {
            return false;
        }
        (self.tape_is_gone)();
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is the tape's mapping, which is never unmapped; it is only ever reached
        // through atomics, and any values in it will do.
        let start =
            unsafe { libc::mmap(self.start as *mut c_void, self.bytes, access, flags, -1, 0) };
        start != libc::MAP_FAILED
    }

    /// Hands the signal to the handler that was there before.
    ///
    /// # Safety
    /// The arguments are those the handler was called with.
    unsafe fn pass_on(&self, signal: c_int, about: *mut libc::siginfo_t, context: *mut c_void) {
        let before = self.before.sa_sigaction;
        // SAFETY: the handler was installed with these flags, for this signal; resetting and
        // raising are allowed here.
        unsafe {
            let is_access = (1..=libc::BUS_MCEERR_AR).contains(&(*about).si_code);
            if before == libc::SIG_IGN && !is_access {
                return;
            }
            if before == libc::SIG_DFL || before == libc::SIG_IGN {
                // A bad access is repeated when this returns, and then ends the process; a signal
                // that was sent has to be sent again.
                libc::signal(signal, libc::SIG_DFL);
                if !is_access {
                    libc::raise(signal);
                }
            } else if self.before.sa_flags & libc::SA_SIGINFO != 0 {
                std::mem::transmute::<usize, HandlerWithInfo>(before)(signal, about, context);
            } else {
                std::mem::transmute::<usize, Handler>(before)(signal);
            }
        }
    }
}
