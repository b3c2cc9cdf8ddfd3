//! GPU readings from NVML, on a thread of its own.
//!
//! A call into the driver can hang for seconds when a GPU is lost, so the agent's loop never makes
//! one: it takes the newest reading this thread has left, and none when that is too old. A node
//! without NVML is logged once; the thread goes on looking, since a driver may be
//! installed later. Processes are matched by pid, which is sound only in the machine's first pid
//! namespace, because NVML knows no other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memtape_core::limits::GPUS_PER_NODE_MAX;
use memtape_proto::readings::Gpu;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use tokio::sync::watch;

use crate::node::clock::{self, Now};
use crate::node::process;

/// A reading older than this is not used.
const READING_AGE_MAX: Duration = Duration::from_secs(10);

/// Time between two attempts to find NVML.
const SEARCH_INTERVAL: Duration = Duration::from_secs(60);

/// Time between two readings.
const READING_INTERVAL: Duration = Duration::from_secs(1);

/// One reading of all GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Begin of the reading, on the monotonic clock: its figures are of this time, or later.
    pub(crate) begun_ns: u64,
    /// Readings of the GPUs, in the order of their indexes.
    pub(crate) gpus: Vec<Gpu>,
    /// Bytes each process holds, by pid and UUID in lower case; MIG instances by their own UUID.
    pub(crate) processes: BTreeMap<(u32, String), u64>,
}

/// The newest reading, or why there is none.
#[derive(Clone, Debug)]
pub(crate) struct Gpus {
    newest: watch::Receiver<Newest>,
}

type Newest = Result<(Now, Arc<Reading>), NoReading>;

/// Why there is no reading, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoReading {
    /// The thread has just started.
    #[error("NVML has not answered yet")]
    NotYet,
    /// The library is not there.
    #[error("no NVIDIA driver is found on this node")]
    NoDriver,
    /// The library is there and does not start.
    #[error("NVML does not start ({0})")]
    NotStarted(String),
    /// A reading failed as a whole.
    #[error("NVML cannot list the GPUs ({0})")]
    NotListed(String),
    /// A call takes too long.
    #[error("NVML has not answered for {} s", .0.as_secs())]
    Silent(Duration),
}

impl Gpus {
    /// Starts the thread; it ends by itself after the last `Gpus` is dropped.
    pub(crate) fn start(root: &Path) -> std::io::Result<Self> {
        let (sender, newest) = watch::channel(Err(NoReading::NotYet));
        let with_processes = process::is_first_pid_namespace(root);
        std::thread::Builder::new()
            .name("memtape-nvml".to_string())
            .spawn(move || watch_gpus(&sender, with_processes))?;
        Ok(Self { newest })
    }

    /// The newest reading.
    /// The error says why there is none.
    pub(crate) fn newest(&self, now: Now) -> Result<Arc<Reading>, NoReading> {
        let (at, reading) = self.newest.borrow().clone()?;
        let age = now.since(at);
        if age > READING_AGE_MAX { Err(NoReading::Silent(age)) } else { Ok(reading) }
    }
}

impl Reading {
    /// Bytes of a process on a GPU or MIG instance; none when the driver does not report them.
    pub(crate) fn process_bytes(&self, pid: u32, uuid: &str) -> Option<u64> {
        self.processes.get(&(pid, uuid.to_ascii_lowercase())).copied()
    }

    /// Pids of the processes on a GPU or MIG instance whose bytes the driver reports.
    pub(crate) fn processes_on(&self, uuid: &str) -> impl Iterator<Item = u32> {
        let of = move |((pid, of), _): (&(u32, String), &u64)| {
            of.eq_ignore_ascii_case(uuid).then_some(*pid)
        };
        self.processes.iter().filter_map(of)
    }

    /// Processes on a GPU or MIG instance that are among these.
    pub(crate) fn count_on(&self, uuid: &str, pids: &BTreeSet<u32>) -> u32 {
        let count = self.processes_on(uuid).filter(|pid| pids.contains(pid)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

/// Bytes in use on a GPU at a point in time, in total and by one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuUse {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Free, in bytes.
    pub free_bytes: u64,
    /// Bytes held by the process; none when the driver does not report them.
    pub process_bytes: Option<u64>,
}

/// Asks the driver once, from the caller's own thread: for a tool, not for the agent's loop. None
/// without NVML, or when it knows no such GPU.
pub fn gpu_use(uuid: &str, pid: u32) -> Option<GpuUse> {
    let nvml = Nvml::init().ok()?;
    let reading = read_all(&nvml, process::is_first_pid_namespace(Path::new("/"))).ok()?;
    let gpu = reading.gpus.iter().find(|gpu| gpu.uuid.eq_ignore_ascii_case(uuid))?;
    Some(GpuUse {
        total_bytes: gpu.total_bytes,
        free_bytes: gpu.free_bytes,
        process_bytes: reading.process_bytes(pid, uuid),
    })
}

/// The thread: finds NVML, then reads it until the agent stops.
fn watch_gpus(sender: &watch::Sender<Newest>, with_processes: bool) {
    let mut logged = None;
    while !sender.is_closed() {
        let why = match Nvml::init() {
            Ok(nvml) => read_until_failure(sender, &nvml, with_processes),
            Err(NvmlError::LibloadingError(_)) => Some(NoReading::NoDriver),
            Err(error) => Some(NoReading::NotStarted(one_line(&error))),
        };
        let Some(why) = why else { return };
        if logged.as_ref() != Some(&why) {
            tracing::info!("{why}: memory outside of PyTorch will be unknown here");
            logged = Some(why.clone());
        }
        let _ = sender.send_replace(Err(why));
        clock::sleep_while(|| !sender.is_closed(), SEARCH_INTERVAL);
    }
}

/// Reads until a reading fails as a whole, and returns why; `None` when the agent stops.
fn read_until_failure(
    sender: &watch::Sender<Newest>,
    nvml: &Nvml,
    with_processes: bool,
) -> Option<NoReading> {
    tracing::info!(gpus = nvml.device_count().unwrap_or_default(), "NVML found");
    if !with_processes {
        tracing::warn!(
            "the agent runs in a pid namespace of its own: run it in the host's (hostPID) to see \
             what each process holds outside of PyTorch"
        );
    }
    while !sender.is_closed() {
        match read_all(nvml, with_processes) {
            Ok(reading) => drop(sender.send_replace(Ok((clock::now(), Arc::new(reading))))),
            Err(error) => return Some(NoReading::NotListed(one_line(&error))),
        };
        clock::sleep_while(|| !sender.is_closed(), READING_INTERVAL);
    }
    None
}

fn read_all(nvml: &Nvml, with_processes: bool) -> Result<Reading, nvml_wrapper::error::NvmlError> {
    let mut reading = Reading { begun_ns: clock::now().mono_ns, ..Reading::default() };
    for index in 0..nvml.device_count()?.min(GPUS_PER_NODE_MAX) {
        // One lost GPU hides no other.
        let Ok(device) = nvml.device_by_index(index) else { continue };
        let (Ok(uuid), Ok(memory)) = (device.uuid(), device.memory_info()) else { continue };
        let mut processes = None;
        if with_processes {
            processes = read_processes(&device, &uuid, &mut reading.processes);
            for instance in 0..device.mig_device_count().unwrap_or_default().min(GPUS_PER_NODE_MAX)
            {
                let Ok(instance) = device.mig_device_by_index(instance) else { continue };
                let Ok(uuid) = instance.uuid() else { continue };
                read_processes(&instance, &uuid, &mut reading.processes);
            }
        }
        let (total_bytes, used_bytes) = (memory.total, memory.used);
        let free_bytes = memory.free;
        let ranks = None;
        reading.gpus.push(Gpu {
            uuid,
            index,
            total_bytes,
            used_bytes,
            free_bytes,
            processes,
            ranks,
        });
    }
    Ok(reading)
}

/// Notes the bytes of each process; returns the number of processes. Graphics processes count, too:
/// their memory was not left by a process that has ended.
fn read_processes(
    device: &Device,
    uuid: &str,
    processes: &mut BTreeMap<(u32, String), u64>,
) -> Option<u32> {
    let mut running = device.running_compute_processes().ok()?;
    // MIG instances have none.
    running.extend(device.running_graphics_processes().unwrap_or_default());
    for process in &running {
        if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
            processes.insert((process.pid, uuid.to_ascii_lowercase()), bytes);
        }
    }
    let pids: BTreeSet<u32> = running.iter().map(|process| process.pid).collect();
    u32::try_from(pids.len()).ok()
}

fn one_line(error: &nvml_wrapper::error::NvmlError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_by_pid_and_uuid() {
        let processes = BTreeMap::from([((7, "gpu-aa".to_string()), 5)]);
        let reading = Reading { processes, ..Reading::default() };
        for (pid, uuid, expected) in
            [(7, "GPU-AA", Some(5)), (7, "GPU-BB", None), (8, "GPU-AA", None), (0, "", None)]
        {
            assert_eq!(reading.process_bytes(pid, uuid), expected, "{pid} {uuid}");
            let count = u32::from(expected.is_some());
            assert_eq!(reading.count_on(uuid, &BTreeSet::from([pid])), count, "{pid} {uuid}");
        }
    }

    #[test]
    fn an_old_reading_is_not_used() {
        let reading = Arc::new(Reading::default());
        let now = Now { wall_ns: 0, mono_ns: 21_000_000_000 };
        let long_ago = Now { wall_ns: 0, mono_ns: 1_000_000_000 };
        let silent = NoReading::Silent(Duration::from_secs(20));
        assert_eq!(silent.to_string(), "NVML has not answered for 20 s");
        for (newest, expected) in [
            (Err(NoReading::NotYet), Err(NoReading::NotYet)),
            (Ok((now, Arc::clone(&reading))), Ok(Arc::clone(&reading))),
            (Ok((long_ago, reading)), Err(silent)),
        ] {
            let (_sender, newest) = watch::channel(newest);
            assert_eq!(Gpus { newest }.newest(now), expected);
        }
    }

    /// On a node with a driver there must be GPUs, on one without there must be a reason.
    #[test]
    fn nvml_gives_a_reading_or_a_reason_on_this_node() {
        let gpus = Gpus::start(Path::new("/")).expect("thread");
        let has_driver = Path::new("/proc/driver/nvidia/version").exists();
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(100));
            match gpus.newest(clock::now()) {
                Ok(reading) if has_driver => return assert!(!reading.gpus.is_empty()),
                Err(NoReading::NoDriver) if !has_driver => return,
                _ => {}
            }
        }
        panic!("no answer: {:?}", gpus.newest(clock::now()));
    }
}
