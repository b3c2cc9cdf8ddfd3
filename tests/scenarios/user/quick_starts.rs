//! The quick starts in `docs/quickstart/` and the page about security do what they say: their
//! scripts are written and their commands run, on the fake CUDA runtime, and what the pages show
//! is printed.
//! The commands find `memtape`, `python` and its scripts on the `PATH`, the tapes in a folder of
//! their own, and another port than 7771 in the environment.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memtape_tests::cluster::free_port;
use memtape_tests::page::{Block, blocks, missing};
use memtape_tests::processes::Process;
use memtape_tests::{Torch, left_out, library, memtape, root, torch};

/// The pages, and the Python modules that each needs beside PyTorch.
const PAGES: [(&str, &[&str]); 7] = [
    ("torchrun", &[]),
    ("lightning", &["lightning"]),
    ("accelerate", &["accelerate", "transformers"]),
    ("deepspeed", &["deepspeed"]),
    ("ray", &["ray"]),
    ("slurm", &[]),
    ("kubernetes", &[]),
];

/// What blocks that are not run need, and the variable that says that it is there:
/// `tests/slurm/cluster` sets it.
const CLUSTERS: [(&str, &str); 1] = [("it needs a Slurm cluster", "MEMTAPE_TEST_SLURM")];

/// Modules that `cargo xtask test` does without: they take minutes to install.
const OPTIONAL: [&str; 2] = ["deepspeed", "ray"];

/// The longest page takes half a minute on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(280);

/// Printed between two blocks of commands.
const NEXT: &str = "=== next block";

fn page(name: &str) -> PathBuf {
    root().join("docs/quickstart").join(name).with_extension("md")
}

#[test]
fn every_block_is_run_or_says_why_not() {
    let folder = std::fs::read_dir(root().join("docs/quickstart")).expect("the pages");
    let mut found: Vec<PathBuf> = folder.map(|entry| entry.expect("a page").path()).collect();
    let mut listed: Vec<PathBuf> = PAGES.iter().map(|(name, _)| page(name)).collect();
    found.sort();
    listed.sort();
    assert_eq!(found, listed, "PAGES lists them");
    for path in found {
        let blocks = blocks(&path).unwrap_or_else(|why| panic!("{why}"));
        let has_commands = |block: &Block| matches!(block, Block::Commands(..) | Block::NotRun(..));
        assert!(blocks.iter().any(has_commands), "{} has no command", path.display());
    }
}

#[test]
fn quick_start_torchrun() {
    run("torchrun");
}

#[test]
fn quick_start_lightning() {
    run("lightning");
}

#[test]
fn quick_start_accelerate() {
    run("accelerate");
}

#[test]
fn quick_start_deepspeed() {
    run("deepspeed");
}

#[test]
fn quick_start_ray() {
    run("ray");
}

#[test]
fn quick_start_slurm() {
    run("slurm");
}

#[test]
fn quick_start_kubernetes() {
    run("kubernetes");
}

#[test]
fn the_page_about_security() {
    let what = "the page about security";
    if let Some(torch) = torch(what) {
        follow(what, &root().join("docs/security.md"), &torch);
    }
}

/// Runs the commands of a page and compares what they print with what it shows.
fn run(name: &str) {
    let what = format!("the quick start of {name}");
    let Some(torch) = torch(&what) else { return };
    let (_, modules) = PAGES.iter().find(|(page, _)| *page == name).expect("a page of the list");
    if let Some(module) = modules.iter().find(|module| !imports(&torch, module)) {
        assert!(OPTIONAL.contains(module), "{what}: {module} is not installed");
        left_out(&what, &format!("{module}; `cargo xtask docs --all` installs it"));
        return;
    }
    follow(&what, &page(name), &torch);
}

/// Runs the commands of the page in this file.
fn follow(what: &str, page: &Path, torch: &Torch) {
    let blocks = blocks(page).unwrap_or_else(|why| panic!("{why}"));
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let commands = lay_out(&blocks, scratch.path());
    let mut shell = shell(torch, scratch.path());
    let (code, said) = Process::start(&mut shell).end(PATIENCE);
    let said = said.join("\n");
    assert_eq!(code, Some(0), "{said}");
    let printed: Vec<&str> = said.split(NEXT).collect();
    assert_eq!(printed.len(), commands.len() + 1, "{said}");
    for (shown, printed) in commands.iter().zip(printed) {
        let missing = missing(shown, printed);
        assert!(missing.is_none(), "{what} shows {missing:?}; printed was:\n{printed}");
    }
}

fn imports(torch: &Torch, module: &str) -> bool {
    let asked = format!("import importlib.util as u; exit(u.find_spec('{module}') is None)");
    // Alone: a folder of this name where the tests run is no module.
    let found = Command::new(&torch.python).args(["-I", "-c", &asked]).status();
    found.is_ok_and(|status| status.success())
}

/// Writes the files of a page and one script of its commands; returns what each block shows.
fn lay_out(blocks: &[Block], folder: &Path) -> Vec<Vec<String>> {
    let mut script = String::from("exec 2>&1\nset -e\n");
    let mut shown = Vec::new();
    for block in blocks {
        let (code, lines) = match block {
            Block::File(name, text) => {
                std::fs::write(folder.join(name), text).expect("a file of the page");
                continue;
            }
            Block::Commands(code, lines) => (code, lines.clone()),
            Block::NotRun(code, reason) if is_there(reason) => (code, Vec::new()),
            Block::NotRun(..) => continue,
        };
        script += &format!("{code}\necho '{NEXT}'\n");
        shown.push(lines);
    }
    // Services that the page has started.
    script += "kill $(jobs -p) 2>/dev/null || true\n";
    std::fs::write(folder.join("commands.sh"), script).expect("the script");
    shown
}

/// Is there what commands need that are not run everywhere?
fn is_there(reason: &str) -> bool {
    let known = CLUSTERS.iter().find(|(needs, _)| *needs == reason);
    known.is_some_and(|(_, variable)| std::env::var_os(variable).is_some())
}

/// The shell that runs the script, as a machine with two GPUs has it.
fn shell(torch: &Torch, folder: &Path) -> Command {
    let binaries = [memtape().parent(), torch.python.parent()].map(|path| path.expect("a folder"));
    library();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = binaries.into_iter().map(Path::to_path_buf).chain(std::env::split_paths(&path));
    let mut shell = Command::new(root().join("tests/fake_cuda/run"));
    shell.args(["-n", "2", "-b", "4G", "--", "bash", "commands.sh"]).current_dir(folder);
    shell.env("PATH", std::env::join_paths(folders).expect("a path"));
    shell.env("MEMTAPE_DIR", folder.join("tapes")).env("MEMTAPE_SPOOL_DIR", folder.join("spool"));
    let address = format!("127.0.0.1:{}", free_port());
    shell.env("MEMTAPE_COORDINATOR", format!("http://{address}")).env("MEMTAPE_LISTEN", address);
    shell.env("FAKECUDA_STATE", folder.join("devices")).env("HOME", folder);
    shell.env("HF_HUB_OFFLINE", "1").env_remove("MEMTAPE_JOB");
    shell
}
