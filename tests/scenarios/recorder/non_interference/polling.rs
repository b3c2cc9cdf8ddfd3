//! Looks at PyTorch's flight recorder: a thread more in the process, and only where there is
//! something to look at.

use std::time::Duration;

use memtape_tests::processes::Process;
use memtape_tests::torch;

const PATIENCE: Duration = Duration::from_secs(120);

/// A process group of one rank, or none, and then the names of the process's threads.
const THREADS: &str = r#"
import os, sys, time, torch, torch.distributed as dist
tensor = torch.ones(1000, device="cuda")
if sys.argv[1] != "none":
    dist.init_process_group(sys.argv[1], store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(tensor)
time.sleep(3)
tasks = "/proc/self/task"
names = [open(f"{tasks}/{task}/comm").read().strip() for task in os.listdir(tasks)]
print("threads", sorted(name for name in names if name.startswith("memtape")), flush=True)
"#;

#[test]
fn a_thread_more_only_where_there_is_something_to_look_at() {
    let Some(torch) = torch("the recorder's threads are those it needs") else { return };
    let (one, two) = ("['memtape']", "['memtape', 'memtape-looks']");
    for (backend, variable, value, expected) in [
        ("nccl", "TORCH_FR_BUFFER_SIZE", "100", two),
        ("nccl", "TORCH_FR_BUFFER_SIZE", "0", one),
        ("nccl", "MEMTAPE_COLLECTIVES", "0", one),
        ("gloo", "TORCH_FR_BUFFER_SIZE", "100", one),
        ("none", "TORCH_FR_BUFFER_SIZE", "100", one),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = torch.recorded(1, "1G", folder.path());
        command.env("FAKECUDA_NCCL", "1").env("FAKENCCL_FOLDER", folder.path());
        command.env(variable, value).args(["-W", "ignore", "-c", THREADS, backend]);
        let (code, said) = Process::start(&mut command).end(PATIENCE);
        assert_eq!(code, Some(0), "an orderly exit, {backend}: {said:#?}");
        let threads = said.iter().find_map(|line| line.strip_prefix("threads "));
        assert_eq!(threads, Some(expected), "{backend}, {variable}={value}: {said:#?}");
    }
}
