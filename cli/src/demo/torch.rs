//! The demo's real training job: `train_ddp.py` under torchrun and `memtape run`.
//!
//! The job uses this machine's GPUs. Without GPUs, PyTorch's own allocator runs on the fake CUDA
//! runtime, which its `run` script preloads. The wheel has both files beside the Python module,
//! built; the source tree has them in `tests/`, where the script builds the runtime if necessary.
//! Nothing is downloaded: a Python with torch must be there.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::{library, python};

/// The paths and the GPU count that starting the job needs.
#[derive(Debug)]
pub(crate) struct Torch {
    python: PathBuf,
    files: Files,
    gpus: u32,
}

impl Torch {
    /// Finds Python, torch and the script.
    /// The error is one line: what is missing.
    pub(crate) fn find(python: Option<PathBuf>, ranks: u32) -> anyhow::Result<Self> {
        let Some(files) = installed().or_else(in_source_tree) else {
            bail!("--torch needs the wheel's files: pip install memtape, or build a source tree");
        };
        let python = python::program(&python.unwrap_or_else(|| files.python.clone()))?;
        let build = Build::of(&python)?;
        if build.gpus == 0 && !build.fits_fake_cuda() {
            bail!(
                "{} has torch {}, which cannot run without a GPU: pip install torch==2.11.0 \
                 (Python 3.10 or newer), or name another Python with --python",
                python.display(),
                build.version
            );
        }
        let gpus = build.gpus;
        if gpus > 0 && gpus < ranks {
            bail!("this machine has {gpus} GPUs: use --ranks {gpus} or fewer");
        }
        Ok(Self { python, files, gpus })
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
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        let ranks = ranks.to_string();
        let mut line = words(&["run", "--job", job, "--dir", &text(tapes), "--"]);
        if self.gpus == 0 {
            // By the shell, because some installers drop the right to execute.
            line.extend(words(&["sh", &text(&self.files.fake_cuda), "-n", &ranks, "--"]));
        }
        line.extend(words(&[&text(&self.python), "-m", "torch.distributed.run", "--standalone"]));
        line.extend(words(&["--nproc-per-node", &ranks, &text(&self.files.script)]));
        line.extend(words(&["--steps", &u32::MAX.to_string(), "--step-ms", "30"]));
        if let Some(rank) = leak_rank {
            line.extend(words(&["--leak-rank", &rank.to_string()]));
        }
        line
    }
}

/// Paths of the parts of the job.
#[derive(Debug)]
struct Files {
    script: PathBuf,
    /// The script that runs a command on the fake CUDA runtime.
    fake_cuda: PathBuf,
    /// Default Python.
    python: PathBuf,
}

/// The files beside the recorder of the wheel, and the Python that has the wheel.
fn installed() -> Option<Files> {
    let library = library::find().ok()?;
    let module = library.parent()?;
    let script = module.join("demo/train_ddp.py");
    let binary = std::env::current_exe().ok()?;
    let python = python_of(module, binary.parent()?);
    script.is_file().then(|| Files { script, fake_cuda: module.join("fake_cuda/run"), python })
}

/// `python3.12` for a module in `lib/python3.12/site-packages`, beside the binary if it is there.
fn python_of(module: &Path, binaries: &Path) -> PathBuf {
    let names = module.ancestors().filter_map(|folder| folder.file_name()?.to_str());
    let mut versions = names.filter(|name| name.starts_with("python3"));
    let name = versions.next().unwrap_or("python3");
    let beside = binaries.join(name);
    if beside.is_file() { beside } else { PathBuf::from(name) }
}

/// The files of the source tree that holds this program.
fn in_source_tree() -> Option<Files> {
    let binary = std::env::current_exe().ok()?;
    let root =
        binary.ancestors().find(|folder| folder.join("tests/torch/train_ddp.py").is_file())?;
    let venv = root.join("target/venv/bin/python");
    Some(Files {
        script: root.join("tests/torch/train_ddp.py"),
        fake_cuda: root.join("tests/fake_cuda/run"),
        python: if venv.is_file() { venv } else { PathBuf::from("python3") },
    })
}

/// Facts about the torch of a Python.
#[derive(Debug, Deserialize)]
struct Build {
    gpus: u32,
    version: String,
    /// CUDA version of the build; none in a build for CPUs.
    cuda: Option<String>,
}

impl Build {
    fn of(python: &Path) -> anyhow::Result<Self> {
        let program = "import json, torch; print(json.dumps({'gpus': torch.cuda.device_count(), \
            'version': torch.__version__, 'cuda': torch.version.cuda}))";
        let output = python::ask(python, program).with_context(|| {
            format!("cannot run {}; name another Python with --python", python.display())
        })?;
        match serde_json::from_slice(&output.stdout) {
            Ok(build) if output.status.success() => Ok(build),
            _ => bail!(
                "{} has no torch: pip install torch==2.11.0, or name another Python with --python",
                python.display()
            ),
        }
    }

    /// True for builds of CUDA 13, whose structures the fake runtime has.
    fn fits_fake_cuda(&self) -> bool {
        self.cuda.as_deref().is_some_and(|cuda| cuda.starts_with("13."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fake_runtime_starts_python_where_there_is_no_gpu() {
        let check = |gpus: u32, leak: Option<u32>, expected: &str| {
            let files = Files {
                script: "/t/train_ddp.py".into(),
                fake_cuda: "/f/run".into(),
                python: "other".into(),
            };
            let torch = Torch { python: "py".into(), files, gpus };
            assert_eq!(torch.arguments("j", Path::new("/d"), 2, leak).join(" "), expected);
        };
        let job = "py -m torch.distributed.run --standalone --nproc-per-node 2 \
            /t/train_ddp.py --steps 4294967295 --step-ms 30";
        check(0, None, &format!("run --job j --dir /d -- sh /f/run -n 2 -- {job}"));
        check(4, Some(1), &format!("run --job j --dir /d -- {job} --leak-rank 1"));
    }

    #[test]
    fn a_missing_torch_is_reported_in_one_line() {
        let check = |python: &str, words: &str| {
            let error = Build::of(Path::new(python)).expect_err("no torch there");
            let line = format!("{error:#}");
            assert!(line.contains(words) && !line.contains('\n'), "{line}");
        };
        check("/bin/false", "pip install");
        check("/no/such/python", "--python");
    }

    #[test]
    fn only_builds_for_cuda_13_run_without_a_gpu() {
        for (cuda, expected) in [(Some("13.0"), true), (Some("12.8"), false), (None, false)] {
            let build = Build { gpus: 0, version: "2".into(), cuda: cuda.map(String::from) };
            assert_eq!(build.fits_fake_cuda(), expected, "{cuda:?}");
        }
    }

    #[test]
    fn the_wheels_own_python_is_the_default() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let python = folder.path().join("python3.12");
        std::fs::write(&python, "").expect("written");
        let check = |module: &str, binaries: &Path, expected: &Path| {
            assert_eq!(python_of(Path::new(module), binaries), expected, "{module}");
        };
        let module = "/v/lib/python3.12/site-packages/memtape";
        check(module, folder.path(), &python);
        check(module, Path::new("/nowhere"), Path::new("python3.12"));
        check("/target/memtape", folder.path(), Path::new("python3"));
    }
}
