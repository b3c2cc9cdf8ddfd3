//! The demo's real training job: `tests/torch/train_ddp.py` under torchrun and `memtape run`.
//!
//! The job uses this machine's GPUs. Without GPUs, PyTorch's own allocator runs on the fake CUDA
//! runtime of `tests/fake_cuda`, whose `run` script builds it if necessary. The job and the fake
//! runtime exist in the source tree only.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The paths and the GPU count that starting the job needs.
#[derive(Debug)]
pub(crate) struct Torch {
    python: PathBuf,
    tests: PathBuf,
    gpus: u32,
}

impl Torch {
    /// Finds Python, torch and the script.
    /// The error is one line: what is missing.
    pub(crate) fn find(python: Option<PathBuf>, ranks: u32) -> anyhow::Result<Self> {
        let Some(root) = source_tree() else {
            bail!("--torch needs the source tree: start the demo in a checkout of Memtape");
        };
        let tests = root.join("tests");
        let venv_python = root.join("target/venv/bin/python");
        let python = python.unwrap_or_else(|| {
            if venv_python.is_file() { venv_python } else { PathBuf::from("python3") }
        });
        let gpus = device_count(&python)?;
        if gpus > 0 && gpus < ranks {
            bail!("this machine has {gpus} GPUs: use --ranks {gpus} or fewer");
        }
        Ok(Self { python, tests, gpus })
    }

    /// Names what the ranks run on.
    pub(crate) fn runtime(&self) -> &'static str {
        if self.gpus > 0 { "GPUs" } else { "the fake CUDA runtime" }
    }

    /// Arguments of `memtape` that run the job.
    pub(crate) fn arguments(
        &self,
        job: &str,
        tapes: &Path,
        ranks: u32,
        leak_rank: Option<u32>,
    ) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut line = vec!["run".into(), "--job".into(), job.into()];
        line.extend(["--dir".into(), text(tapes), "--".into()]);
        if self.gpus == 0 {
            line.extend([text(&self.tests.join("fake_cuda/run")), "-n".into(), ranks.to_string()]);
            line.push("--".into());
        }
        line.extend([text(&self.python), "-m".into(), "torch.distributed.run".into()]);
        line.extend(["--standalone".into(), "--nproc-per-node".into(), ranks.to_string()]);
        line.push(text(&self.tests.join("torch/train_ddp.py")));
        line.extend(["--steps".into(), u32::MAX.to_string(), "--step-ms".into(), "30".into()]);
        if let Some(rank) = leak_rank {
            line.extend(["--leak-rank".into(), rank.to_string()]);
        }
        line
    }
}

/// The source tree that holds this program or the working directory.
fn source_tree() -> Option<PathBuf> {
    let paths = [std::env::current_exe(), std::env::current_dir()];
    let mut above = paths.iter().flatten().flat_map(|path| path.ancestors());
    above.find(|folder| folder.join("tests/torch/train_ddp.py").is_file()).map(PathBuf::from)
}

/// The number of GPUs that this Python's torch finds.
fn device_count(python: &Path) -> anyhow::Result<u32> {
    let program = "import torch; print(torch.cuda.device_count())";
    let output = Command::new(python)
        .args(["-c", program])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .with_context(|| {
            format!("cannot run {}; name another Python with --python", python.display())
        })?;
    let count = String::from_utf8_lossy(&output.stdout).trim().parse().ok();
    match count.filter(|_| output.status.success()) {
        Some(count) => Ok(count),
        None => bail!(
            "{} has no torch: pip install torch==2.11.0, or name another Python with --python",
            python.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fake_runtime_starts_python_where_there_is_no_gpu() {
        let check = |gpus: u32, leak: Option<u32>, expected: &str| {
            let torch = Torch { python: "py".into(), tests: "/t".into(), gpus };
            assert_eq!(torch.arguments("j", Path::new("/d"), 2, leak).join(" "), expected);
        };
        let job = "py -m torch.distributed.run --standalone --nproc-per-node 2 \
            /t/torch/train_ddp.py --steps 4294967295 --step-ms 30";
        check(0, None, &format!("run --job j --dir /d -- /t/fake_cuda/run -n 2 -- {job}"));
        check(4, Some(1), &format!("run --job j --dir /d -- {job} --leak-rank 1"));
    }

    #[test]
    fn no_torch_is_one_clear_line() {
        let check = |python: &str, words: &str| {
            let error = device_count(Path::new(python)).expect_err("no torch there");
            let line = format!("{error:#}");
            assert!(line.contains(words) && !line.contains('\n'), "{line}");
        };
        check("/bin/false", "pip install");
        check("/no/such/python", "--python");
    }
}
