//! `cargo xtask test`: everything that must hold before a change is merged.
//!
//! PyTorch and the tests' other tools are fetched while the first build runs, because on a fresh
//! machine both take minutes. The model checkers run beside it, and cargo-deny is built there: they
//! have builds of their own, and cargo leaves a core idle while the last packages are built.
//! A step that fails does not keep the later ones from being tried: one run tells all.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::process::{BUILD, Step, Steps, built, call, cargo, command, root, run};
use crate::python;
use crate::report::Found;
use crate::supply_chain;

const LINTS: [&str; 8] =
    ["clippy", "--locked", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];

/// The program that `cargo build -p memtape` makes: in a build of the workspace, the tests turn all
/// features on.
const PLAIN_LINTS: [&str; 7] =
    ["clippy", "--locked", "--package", "memtape", "--quiet", "--", "-Dwarnings"];

/// The oldest release, and the one that the tests have whole: `cargo xtask compat` tries them all.
const COMPAT: [&str; 2] = ["2.0.1", "2.11.0"];

/// The type checker of the Python module, and its environment.
const TYPES: &str = "target/types";
const TYPES_PACKAGE: &str = "mypy==2.4.1";

/// The sources of the page, and their tests.
const PAGE: &str = "coordinator/web";

/// Installs the browser of the page's tests.
const BROWSER: &str = "apt-get update && \
                       DEBIAN_FRONTEND=noninteractive apt-get install --yes chromium";

/// What the names of tests contain that need the real Slurm, and a real Ray.
const SLURM: &str = "real_slurm";
const RAY: &str = "real_ray";

/// Runs all of it.
pub(crate) fn run_all(steps: &mut Steps) -> Found {
    let started = Instant::now();
    std::thread::scope(|scope| {
        let alongside = scope.spawn(|| {
            let mut steps: Vec<Step> = fetch().into_iter().collect();
            // Every schedule of a few events, on weakly ordered memory; then long histories in
            // random schedules.
            steps.extend(["loom", "shuttle"].map(|name| run(name, model_checker(name))));
            steps.extend(supply_chain::check());
            steps
        });
        steps.0.extend([
            run("format", cargo(&["fmt", "--all", "--check"])),
            run("fake CUDA", call("make", &["--silent", "-C", "tests/fake_cuda"])),
            run("build", cargo(&BUILD)),
            run("lints", cargo(&LINTS)),
            run("lints without features", cargo(&PLAIN_LINTS)),
        ]);
        steps.0.extend(alongside.join().expect("a step does not panic"));
    });
    let (has_slurm, has_ray) = (can_run_slurm(), can_run_ray());
    let apart = [has_slurm.then_some(SLURM), has_ray.then_some(RAY)];
    let apart: Vec<_> = apart.into_iter().flatten().collect();
    steps.0.extend([
        run("types", types()),
        run("tests", tests(&apart)),
        run("compat", compat(&COMPAT)),
        run("page", page()),
    ]);
    if has_slurm {
        steps.0.push(run("Slurm", beside("tests/slurm/cluster", SLURM)));
    }
    if has_ray {
        steps.0.push(run("Ray", beside("tests/ray/cluster", RAY)));
    }
    Found::tests(steps, started.elapsed())
}

/// Fetches what the tests need besides crates, unless it is there. Gives the step of PyTorch, if it
/// was taken. The others fail nothing by themselves.
fn fetch() -> Option<Step> {
    let torch = (!python::is_torch_ready()).then(|| run("fetch PyTorch", python::install_torch()));
    run("fetch a type checker", python::environment(TYPES, &[TYPES_PACKAGE]));
    run("fetch the page's tools", npm(&["ci", "--ignore-scripts", "--no-audit", "--no-fund"]));
    // As root of a Debian; elsewhere the tests of the page say that there is no browser.
    if !Path::new("/usr/bin/chromium").exists() {
        run("fetch a browser", call("sh", &["-c", BROWSER]));
    }
    // MemoryViz.js, which opens an exported pickle in one of the tests. Where it cannot be had,
    // the tests say so and check what they can without it.
    if !root().join("target/viz/VERSION").is_file() {
        run("fetch PyTorch's viewer", call("python3", &["tests/viz/fetch.py", "target/viz"]));
    }
    torch
}

/// The tests, without those that have a step of their own here.
fn tests(apart: &[&str]) -> Command {
    // Without `--tests`, rustdoc would read every package, to find no example.
    let what = ["test", "--locked", "--workspace", "--tests", "--no-fail-fast", "--quiet", "--"];
    let mut tests = cargo(&what);
    for names in apart {
        tests.args(["--skip", names]);
    }
    // Without PyTorch half of the promises would go unchecked: that is a failure here.
    tests.env("MEMTAPE_TEST_PYTHON", python::torch()).env("MEMTAPE_TEST_TORCH", "1");
    tests
}

/// The tests of these names beside a real cluster, which a script starts: half a minute for the
/// packages of Slurm, a minute for the nodes of Ray.
fn beside(cluster: &str, names: &str) -> Command {
    let mut beside = command(root().join(cluster));
    beside.arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The targets of the tests above: nothing is built again, and there is no network.
    beside.args(["test", "--locked", "--offline", "--workspace", "--no-fail-fast", "--quiet"]);
    beside.args(["--tests", names]);
    beside
}

/// Tries the hooks with these releases of PyTorch.
pub(crate) fn compat<S: AsRef<OsStr>>(versions: &[S]) -> Command {
    let mut compat = call("python3", &["tests/compat/compat.py"]);
    compat.args(["memtape", "libmemtape.so"].map(|name| built("debug").join(name))).args(versions);
    compat
}

/// Is this Debian 12, and may namespaces be made as its root?
fn can_run_slurm() -> bool {
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let is_debian_12 = system.lines().any(|line| line == "VERSION_CODENAME=bookworm");
    let mut make = call("unshare", &["--mount", "--pid", "--net", "--uts", "--fork", "mount"]);
    make.args(["-t", "tmpfs", "none", "/mnt"]).stdout(Stdio::null()).stderr(Stdio::null());
    is_debian_12 && make.status().is_ok_and(|status| status.success())
}

/// Is Ray there, and may namespaces be made?
fn can_run_ray() -> bool {
    let mut make = call("unshare", &["--net", "--pid", "--fork", "--mount-proc", "true"]);
    make.stdout(Stdio::null()).stderr(Stdio::null());
    let has_ray = root().join("target/venv/bin/ray").is_file();
    has_ray && make.status().is_ok_and(|status| status.success())
}

/// The module is marked as typed (`py.typed`), so its types are checked as its users' are.
fn types() -> Command {
    let mut check = command(root().join(TYPES).join("bin/mypy"));
    check.args(["--strict", "--cache-dir=target/types/cache", "python/memtape"]);
    check
}

/// npm, in the folder of the page.
fn npm(arguments: &[&str]) -> Command {
    let mut npm = call("npm", arguments);
    npm.current_dir(root().join(PAGE));
    npm
}

/// The types of the page, its modules, and its views in a browser beside a made-up coordinator and
/// beside the demo.
fn page() -> Command {
    let mut test = npm(&["run", "--silent", "all"]);
    test.env("MEMTAPE", built("debug").join("memtape"));
    test
}

/// A model checker of the tape, in a build of its own: its flag would rebuild all else.
fn model_checker(name: &str) -> Command {
    let mut command = cargo(&["test", "--locked", "--quiet", "-p", "memtape-tape", "--test", name]);
    command
        .env("RUSTFLAGS", format!("--cfg memtape_{name}"))
        .env("CARGO_TARGET_DIR", root().join("target").join(name));
    command
}
