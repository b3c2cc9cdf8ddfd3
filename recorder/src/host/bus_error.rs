//! A tape that is cut short while it is being written.
//!
//! Whoever may write the file, which is its user or root, can truncate it. Touching a page that is
//! gone raises SIGBUS, which ends the process: but no clean-up script may end a training job
//! through its recorder. So the guest handles SIGBUS where the address is its tape's: it puts
//! anonymous memory in the tape's place and turns itself off. The agent sees that the tape was cut.
//!
//! Any other SIGBUS goes to whoever handled it before, as if the guest were not there. Beyond reach
//! are threads that block SIGBUS, and handlers installed later that hand nothing on.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use crate::writer::panic_boundary::keeping_errno;
use crate::writer::state;

type Handler = unsafe extern "C" fn(c_int);
type HandlerWithInfo = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Where the tape is, in which process, and what the signal did before.
struct Watched {
    start: usize,
    bytes: usize,
    pid: u32,
    before: libc::sigaction,
}

static WATCHED: OnceLock<Watched> = OnceLock::new();

/// Starts to handle bus errors on the tape; once.
pub(crate) fn watch(words: &'static [AtomicU64]) {
    // SAFETY: all-zero is a valid sigaction, and the handler lives as long as the process. What it
    // needs is in place before it is installed.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before);
        let start = words.as_ptr() as usize;
        let watched = Watched { start, bytes: size_of_val(words), pid: std::process::id(), before };
        if WATCHED.set(watched).is_err() {
            return;
        }
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut());
    }
}

/// Everything here may be done in a signal handler.
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
    /// True when the address is the tape's and there is other memory in its place now.
    fn replace_tape(&self, address: usize) -> bool {
        let is_ours = (self.start..self.start + self.bytes).contains(&address)
            && self.pid == std::process::id();
        if !is_ours {
            return false;
        }
        state::disable_without_tape();
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is the tape's mapping, which nobody unmaps; it is only ever reached
        // through atomics, and any values in it will do.
        let start =
            unsafe { libc::mmap(self.start as *mut c_void, self.bytes, access, flags, -1, 0) };
        start != libc::MAP_FAILED
    }

    /// Does what the signal did before.
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
