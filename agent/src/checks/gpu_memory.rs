//! What is known of the node's GPUs, and the questions that wait for it.
//!
//! A machine without clock, thread or socket. It takes each reading of the GPUs once, and answers
//! the questions for which the readings since are enough. A question whose client is gone is
//! forgotten at the next look. Nothing is kept across a start of the agent: what a GPU holds
//! without processes has to be seen again.

use std::collections::BTreeSet;
use std::time::Duration;

use memtape_core::policy::keep_out::{Node, Seen};
use memtape_core::policy::node_check::{Readings, Verdict, sentence, verdict};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::node::nvml::{NoReading, Reading};

/// Time between two looks at the readings; the driver is read as often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The same while a question waits.
const LOOK_INTERVAL_ASKED: Duration = Duration::from_millis(250);

/// A question, to be answered once.
#[derive(Debug)]
pub(crate) struct Question {
    reply: oneshot::Sender<Answer>,
    /// Held until the question is answered or forgotten.
    _permit: Option<OwnedSemaphorePermit>,
}

/// The answer to a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The answer.
    pub(crate) verdict: Verdict,
    /// What is known of each GPU, one sentence each; or why nothing is.
    pub(crate) details: Vec<String>,
}

/// The check.
#[derive(Debug, Default)]
pub(crate) struct GpuMemory {
    node: Node,
    /// When the last reading that was taken was begun.
    read_ns: Option<u64>,
    /// When the readings were looked at last.
    looked_ns: u64,
    /// With the time of each.
    questions: Vec<(u64, Question)>,
    /// The answer that was logged last.
    logged: Option<Verdict>,
}

impl Question {
    /// A question, and what its answer comes from.
    pub(crate) fn new(permit: Option<OwnedSemaphorePermit>) -> (Self, oneshot::Receiver<Answer>) {
        let (reply, answer) = oneshot::channel();
        (Self { reply, _permit: permit }, answer)
    }
}

impl GpuMemory {
    /// A question came. It is answered at the next look for which there is enough to say.
    pub(crate) fn ask(&mut self, now_ns: u64, question: Question) {
        self.questions.push((now_ns, question));
    }

    /// When the next look is wanted, on the monotonic clock.
    pub(crate) fn next_ns(&self) -> u64 {
        let is_asked = !self.questions.is_empty();
        let interval = if is_asked { LOOK_INTERVAL_ASKED } else { LOOK_INTERVAL };
        self.looked_ns.saturating_add(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Takes the newest reading, if it is a new one, and answers what can be answered. `pids` are
    /// those of the living ranks.
    pub(crate) fn look(
        &mut self,
        now_ns: u64,
        newest: Result<&Reading, &NoReading>,
        pids: &BTreeSet<u32>,
    ) {
        self.looked_ns = now_ns;
        if let Ok(reading) = newest
            && self.read_ns != Some(reading.begun_ns)
        {
            self.read_ns = Some(reading.begun_ns);
            let seen = reading.gpus.iter().map(|gpu| {
                let ranks = gpu.processes.map(|_| reading.count_on(&gpu.uuid, pids));
                let seen = Seen { used_bytes: gpu.used_bytes, processes: gpu.processes, ranks };
                (gpu.uuid.as_str(), seen)
            });
            // The coordinator decides whether the node is kept out.
            let _ = self.node.see(reading.begun_ns, seen);
        }
        for (asked_ns, question) in std::mem::take(&mut self.questions) {
            if question.reply.is_closed() {
                continue;
            }
            let readings = readings(asked_ns, newest);
            match verdict(asked_ns, now_ns, readings, &self.node) {
                None => self.questions.push((asked_ns, question)),
                Some(verdict) => {
                    let answer = Answer { verdict, details: self.details(readings, newest) };
                    self.log(&answer);
                    let _ = question.reply.send(answer); // its client has just gone
                }
            }
        }
    }

    fn details(&self, readings: Readings, newest: Result<&Reading, &NoReading>) -> Vec<String> {
        let not_known = "what GPUs hold now is not known";
        match (readings, newest) {
            (Readings::Fresh | Readings::Awaited | Readings::Absent, Err(why)) => {
                vec![format!("{why}: {not_known}")]
            }
            (Readings::Awaited | Readings::Absent, Ok(_)) => {
                vec![format!("NVML has not answered since the question: {not_known}")]
            }
            (Readings::Fresh, Ok(reading)) if reading.gpus.is_empty() => {
                vec![format!("NVML lists no GPU: {not_known}")]
            }
            (Readings::Fresh, Ok(_)) => {
                self.node.present().map(|(uuid, present)| sentence(uuid, present)).collect()
            }
        }
    }

    /// Logs an answer that is another one than the last.
    fn log(&mut self, answer: &Answer) {
        if self.logged.replace(answer.verdict) == Some(answer.verdict) {
            return;
        }
        let details = answer.details.join("; ");
        match answer.verdict {
            Verdict::Healthy => tracing::info!("the health check of this node passes: {details}"),
            Verdict::Failed => {
                tracing::warn!(
                    "the health check of this node fails, and it does not join: {details}"
                );
            }
            Verdict::Unknown => {
                tracing::warn!("the health check of this node passes without proof: {details}");
            }
        }
    }
}

/// What the newest reading is worth for a question.
fn readings(asked_ns: u64, newest: Result<&Reading, &NoReading>) -> Readings {
    match newest {
        Ok(reading) if reading.begun_ns > asked_ns => Readings::Fresh,
        Ok(_) | Err(NoReading::NotYet | NoReading::Silent(_)) => Readings::Awaited,
        Err(NoReading::NoDriver | NoReading::NotStarted(_) | NoReading::NotListed(_)) => {
            Readings::Absent
        }
    }
}
