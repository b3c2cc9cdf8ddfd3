//! A signal to one process and no other.
//!
//! A pid is given away again after its process has ended. A descriptor of the process (pidfd) is
//! not: the kernel refuses a signal through it once the process has ended. So the descriptor is
//! taken first, and then it is checked that the pid still is the process that was meant.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use memtape_core::action::remedy;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::node::process::{self, Process};

/// Handle of a process that stays with it when its pid is reused.
pub(crate) trait Hold: Debug {
    /// Sends a signal to it.
    ///
    /// # Errors
    /// The process has ended, or this agent may not signal it.
    fn send(&self, signal: remedy::Signal) -> io::Result<()>;
}

/// Hold of a process of this machine.
#[derive(Debug)]
pub(crate) struct Fence(OwnedFd);

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotFenced {
    /// The process has ended; its pid may be another's.
    #[error("its process has ended")]
    Ended,
    /// The kernel gives no descriptor of the process.
    #[error("the kernel gives no hold of its process: {0}")]
    Kernel(#[source] io::Error),
}

impl Fence {
    /// Takes hold of a process.
    pub(crate) fn of(root: &Path, process: Process) -> Result<Self, NotFenced> {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let held = match pidfd_open(pid.ok_or(NotFenced::Ended)?, PidfdFlags::empty()) {
            Ok(held) => held,
            Err(rustix::io::Errno::SRCH) => return Err(NotFenced::Ended),
            Err(error) => return Err(NotFenced::Kernel(error.into())),
        };
        // After the descriptor: a process that has the pid and the start now had them then, too.
        let stat = process::read(root, process.pid, "stat");
        let start_ticks = stat.as_deref().and_then(process::start_ticks);
        if start_ticks != Some(process.start_ticks()) {
            return Err(NotFenced::Ended);
        }
        Ok(Self(held))
    }
}

impl AsFd for Fence {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Hold for Fence {
    fn send(&self, signal: remedy::Signal) -> io::Result<()> {
        use rustix::process::Signal;
        let signal = match signal {
            remedy::Signal::SigUsr1 => Signal::USR1,
            remedy::Signal::SigUsr2 => Signal::USR2,
            remedy::Signal::SigTerm => Signal::TERM,
            remedy::Signal::SigInt => Signal::INT,
        };
        Ok(pidfd_send_signal(&self.0, signal)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_signal_reaches_the_process_that_was_meant_and_no_other() {
        let root = Path::new("/");
        let mut child = Command::new("sleep").arg("600").spawn().expect("a process");
        let stat = process::read(root, child.id(), "stat").expect("it runs");
        let start_ticks = process::start_ticks(&stat).expect("a start");
        // A process of the same pid that started at another time.
        let stale = Process::known(child.id(), start_ticks - 1);
        assert!(matches!(Fence::of(root, stale), Err(NotFenced::Ended)));
        let fence = Fence::of(root, Process::known(child.id(), start_ticks)).expect("a fence");
        assert!(child.try_wait().expect("a child").is_none());
        fence.send(remedy::Signal::SigTerm).expect("sent");
        assert_eq!(child.wait().expect("an end").signal(), Some(libc::SIGTERM));
        // It has ended: a process that has its pid now is not reached.
        assert!(fence.send(remedy::Signal::SigTerm).is_err());
        let gone = Process::known(child.id(), start_ticks);
        assert!(matches!(Fence::of(root, gone), Err(NotFenced::Ended)));
    }
}
