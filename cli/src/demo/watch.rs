//! The lines that the demo prints while it runs, and its waiting.
//!
//! With `--json` these lines go to stderr, so that stdout holds one object.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::bail;
use memtape_core::identity::owner::job_name;
use memtape_proto::api::{Job, JobState};

use super::answers::Answers;
use super::children::Children;
use crate::output;
use crate::render::units::plural;

/// Time between two requests.
pub(crate) const POLL_TIME: Duration = Duration::from_millis(200);

/// Steps between two lines about a healthy job.
const STEPS_BETWEEN_LINES: u64 = 100;

/// Prints lines, and waits.
#[derive(Debug)]
pub(crate) struct Watch {
    json: bool,
    interrupted: Receiver<()>,
    was_interrupted: bool,
    begin: Instant,
    /// The words about the job in the last line printed, and its step.
    shown: (String, u64),
    /// The process that ends as the scenario wants.
    mortal: Option<String>,
}

impl Watch {
    /// `interrupted` receives once, when the user wants to stop.
    pub(crate) fn new(json: bool, interrupted: Receiver<()>) -> Self {
        let (begin, shown) = (Instant::now(), Default::default());
        Self { json, interrupted, was_interrupted: false, begin, shown, mortal: None }
    }

    /// Prints one line with the time since the start.
    pub(crate) fn say(&self, line: &str) {
        let seconds = self.begin.elapsed().as_secs_f64();
        self.write(&format!("[{seconds:5.1} s] {}", output::clean(line)));
    }

    /// Prints text as it is.
    pub(crate) fn write(&self, text: &str) {
        if self.json {
            eprintln!("{text}");
        } else {
            // A closed stdout does not end the demo.
            let _ = output::print(text);
        }
    }

    /// Waits for [`POLL_TIME`], or until the user interrupts.
    pub(crate) fn pause(&mut self) {
        if self.was_interrupted {
            return;
        }
        match self.interrupted.recv_timeout(POLL_TIME) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => self.was_interrupted = true,
        }
    }

    /// True once the user wants to stop.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.was_interrupted
    }

    /// Marks that the scenario ends this process.
    pub(crate) fn expect_end_of(&mut self, name: String) {
        self.mortal = Some(name);
    }

    /// Polls until `ask` has an answer. Returns none when the user interrupted or the time is over.
    /// Fails when a process of the demo has ended that should not.
    pub(crate) fn until<T>(
        &mut self,
        limit: Option<Duration>,
        children: &mut Children,
        mut ask: impl FnMut(&mut Self) -> Option<T>,
    ) -> anyhow::Result<Option<T>> {
        let begin = Instant::now();
        while !self.was_interrupted {
            self.check_running(children)?;
            if let Some(answer) = ask(self) {
                return Ok(Some(answer));
            }
            if limit.is_some_and(|limit| begin.elapsed() > limit) {
                return Ok(None);
            }
            self.pause();
        }
        Ok(None)
    }

    fn check_running(&self, children: &mut Children) -> anyhow::Result<()> {
        for (name, status, line) in children.ended() {
            if self.mortal.as_ref() != Some(&name) {
                bail!("{name} ended too early ({status}): {line}");
            }
            self.say(&format!("{name} ended ({status}): {line}"));
        }
        Ok(())
    }

    /// Prints a line about the job when the words for its state changed, or after
    /// [`STEPS_BETWEEN_LINES`].
    pub(crate) fn show_progress(&mut self, answers: Answers<'_>) {
        let Some(job) = answers.job() else { return };
        let (shown, shown_step) = &self.shown;
        let words = words(&job);
        if *shown != words || job.step_min >= shown_step + STEPS_BETWEEN_LINES {
            let ranks = plural(u64::from(job.ranks_alive), "rank");
            let name = job_name(&job.job);
            self.say(&format!("job {name}: {ranks}, step {}, {words}", job.step_min));
            self.shown = (words, job.step_min);
        }
    }

    /// Prints the ends of processes until the user interrupts.
    pub(crate) fn until_interrupted(&mut self, children: &mut Children) {
        while !self.was_interrupted {
            for (name, status, line) in children.ended() {
                self.say(&format!("{name} ended ({status}): {line}"));
            }
            self.pause();
        }
        self.say("stopping");
    }
}

/// The demo's words for a job in this state. The detector watches a rise of a healthy job for some
/// steps now and then, which is no finding.
fn words(job: &Job) -> String {
    match job.state.known() {
        Some(JobState::Healthy | JobState::Watching) => "no incident".to_string(),
        Some(JobState::Warming) => "warming up".to_string(),
        _ => job.state_in_words(),
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::diagnosis::Class;

    use super::*;

    #[test]
    fn only_findings_alarm() {
        for (state, expected) in [
            (JobState::Warming, "warming up"),
            (JobState::Healthy, "no incident"),
            (JobState::Watching, "no incident"),
            (JobState::Incident, "incident"),
            (JobState::Failed, "failed"),
            (JobState::Behind, "behind"),
        ] {
            assert_eq!(words(&Job { state: state.into(), ..Job::default() }), expected);
        }
        let (state, class) = (JobState::Incident.into(), Some(Class::CompilePools.into()));
        assert_eq!(words(&Job { state, class, ..Job::default() }), "compile pools");
    }
}
