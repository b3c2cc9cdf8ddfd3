//! A machine that runs one process at a time: a runtime in the thread of the simulation, whose
//! paused clock is the machine's. A killed process is a runtime that is dropped, a stopped one is a
//! runtime that is not run.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::coordinators::clock::Clock;
use crate::coordinators::work::{Phase, Process};

/// A machine.
#[derive(Debug)]
pub(crate) struct Machine {
    rate: f64,
    /// How far its wall clock is ahead.
    ahead_ns: i64,
    state: State,
    /// Starts so far.
    starts: u32,
}

#[derive(Debug)]
enum State {
    Down,
    Runs(Running),
    Stopped { running: Running, since_ns: u64, stands: bool },
}

#[derive(Debug)]
struct Running {
    process: Arc<Process>,
    runtime: Runtime,
    /// How far it has run.
    at_ns: u64,
}

impl Machine {
    /// A machine that is down, whose clock goes at this rate, and whose wall clock is so far ahead.
    pub(crate) fn new(rate: f64, ahead_ns: i64) -> Self {
        Self { rate, ahead_ns, state: State::Down, starts: 0 }
    }

    pub(crate) fn starts(&self) -> u32 {
        self.starts
    }

    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, State::Down)
    }

    /// The process, if it is not stopped.
    pub(crate) fn process(&self) -> Option<&Arc<Process>> {
        match &self.state {
            State::Runs(running) => Some(&running.process),
            State::Down | State::Stopped { .. } => None,
        }
    }

    /// How far the process has run, if it is not stopped.
    pub(crate) fn at_ns(&self) -> Option<u64> {
        match &self.state {
            State::Runs(running) => Some(running.at_ns),
            State::Down | State::Stopped { .. } => None,
        }
    }

    /// Starts a process that does this.
    ///
    /// # Panics
    /// When there can be no more runtimes.
    pub(crate) fn start<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &mut self,
        at_ns: u64,
        process: impl FnOnce(Clock) -> Process,
        live: impl FnOnce(Arc<Process>) -> F,
    ) -> tokio::task::JoinHandle<T> {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without input and output is only memory");
        let process = {
            let _inside = runtime.enter();
            Arc::new(process(Clock::new(self.rate, self.ahead_ns, at_ns)))
        };
        self.starts += 1;
        let task = runtime.spawn(on_its_clock(process.clone(), live(process.clone())));
        self.state = State::Runs(Running { process, runtime, at_ns });
        task
    }

    /// Lets the process run until this time. One that has ended leaves the machine down.
    pub(crate) fn run(&mut self, until_ns: u64) {
        let State::Runs(running) = &mut self.state else { return };
        let process = running.process.clone();
        process.clock.set_limit(until_ns);
        running.at_ns = running.runtime.block_on(async {
            process.clock.set_of_product();
            process.clock.reach_limit().await;
            process.clock.now_ns()
        });
        if process.phase() == Phase::HasEnded {
            self.kill();
        }
    }

    pub(crate) fn kill(&mut self) {
        self.state = State::Down;
    }

    /// Stops the process; false if there is none that runs.
    pub(crate) fn stop(&mut self, since_ns: u64, stands: bool) -> bool {
        let state = std::mem::replace(&mut self.state, State::Down);
        let (state, is_stopped) = match state {
            State::Runs(running) => (State::Stopped { running, since_ns, stands }, true),
            other => (other, false),
        };
        self.state = state;
        is_stopped
    }

    /// Lets a stopped process go on.
    pub(crate) fn go_on(&mut self, at_ns: u64) {
        let state = std::mem::replace(&mut self.state, State::Down);
        self.state = match state {
            State::Stopped { mut running, since_ns, stands } => {
                let clock = &running.process.clock;
                let passed = clock.of_bucket(at_ns.saturating_sub(since_ns));
                clock.set_limit(at_ns);
                running.runtime.block_on(async {
                    // What was waited for meanwhile is there at once, and all times have passed.
                    let passed = if stands { Duration::ZERO } else { passed };
                    clock.set_after(passed, at_ns);
                    tokio::time::advance(passed).await;
                });
                running.at_ns = running.at_ns.max(at_ns);
                State::Runs(running)
            }
            other => other,
        };
    }
}

/// Does this, with the product's clock at the time of the process whenever it goes on.
async fn on_its_clock<T>(process: Arc<Process>, does: impl Future<Output = T>) -> T {
    let mut does = pin!(does);
    poll_fn(|context| {
        process.clock.set_of_product();
        does.as_mut().poll(context)
    })
    .await
}
