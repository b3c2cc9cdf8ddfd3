//! GPU memory of the node: finds memory that was not given back.
//!
//! A machine without clock, thread or socket. It takes each reading of the GPUs once. A client of
//! the health port (`health.rs`) asks again, with the time of the first question, until there is a
//! verdict. Core decides ([`memtape_core::policy::gpu_memory`]). Nothing is kept across a start of
//! the agent: memory that a GPU holds without processes has to be observed again.

use std::collections::BTreeSet;

use memtape_core::policy::gpu_memory::{Node, Readings, Seen, Verdict, verdict};

use crate::node::nvml::{NoReading, Reading};

/// Results of the GPU readings.
#[derive(Clone, Debug)]
pub(crate) struct GpuMemory {
    gpus: Node,
    /// When the newest reading was begun, on the monotonic clock.
    read_ns: Option<u64>,
    /// Reason for the missing reading of the driver.
    missing: Option<NoReading>,
}

impl Default for GpuMemory {
    fn default() -> Self {
        Self { gpus: Node::default(), read_ns: None, missing: Some(NoReading::NotYet) }
    }
}

impl GpuMemory {
    /// Takes the newest reading, if it is new. `pids` are the pids of living ranks.
    pub(crate) fn take(&mut self, newest: Result<&Reading, &NoReading>, pids: &BTreeSet<u32>) {
        self.missing = newest.err().cloned();
        let Ok(reading) = newest else { return };
        if self.read_ns.replace(reading.begun_ns) == Some(reading.begun_ns) {
            return;
        }
        let seen = reading.gpus.iter().map(|gpu| {
            let ranks = gpu.processes.map(|_| reading.count_on(&gpu.uuid, pids));
            let seen = Seen { used_bytes: gpu.used_bytes, processes: gpu.processes, ranks };
            (gpu.uuid.as_str(), seen)
        });
        // The coordinator decides whether the node is kept out.
        self.gpus.see(reading.begun_ns, seen);
    }

    /// The verdict for a question asked at `asked_ns`, none while more readings are needed, and one
    /// sentence about each GPU.
    pub(crate) fn answer(&self, asked_ns: u64, now_ns: u64) -> (Option<Verdict>, Vec<String>) {
        let readings = self.readings(asked_ns);
        (verdict(asked_ns, now_ns, readings, &self.gpus), self.details(readings))
    }

    /// Usability of the newest reading for a question asked at `asked_ns`.
    fn readings(&self, asked_ns: u64) -> Readings {
        match &self.missing {
            None if self.read_ns > Some(asked_ns) => Readings::Fresh,
            None | Some(NoReading::NotYet | NoReading::Silent(_)) => Readings::Awaited,
            Some(NoReading::NoDriver | NoReading::NotStarted(_) | NoReading::NotListed(_)) => {
                Readings::Absent
            }
        }
    }

    fn details(&self, readings: Readings) -> Vec<String> {
        let not_known = "what GPUs hold now is not known";
        if let Some(why) = &self.missing {
            return vec![format!("{why}: {not_known}")];
        }
        if readings != Readings::Fresh {
            return vec![format!("NVML has not answered since the question: {not_known}")];
        }
        let gpus: Vec<String> =
            self.gpus.present().map(|(uuid, present)| present.sentence(uuid)).collect();
        if gpus.is_empty() { vec![format!("NVML lists no GPU: {not_known}")] } else { gpus }
    }
}
