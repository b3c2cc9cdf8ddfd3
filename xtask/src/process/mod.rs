//! Running one program as a step: quietly while all is well, with everything it said when not.

mod descendants;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A step that takes longer hangs: it is ended and fails, and its processes are named. The longest
/// one, all tests from nothing on 2 cores, takes about 30 minutes.
const STEP_TIME_MAX: Duration = Duration::from_mins(60);

/// How long a step's output is waited for after its end: a process that it left behind may hold
/// the pipe open for ever.
const OUTPUT_TIME_MAX: Duration = Duration::from_secs(10);

/// How often a step is asked whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How a test's line begins that says what it left out on this machine.
const LEFT_OUT: &str = "left out: ";

/// Lines of a failed step that are shown; the newest are the ones that tell.
const LINES_SHOWN_MAX: usize = 2_000;

/// What builds the program as the tests use it, and the library. Cargo unites the features of the
/// packages that it builds: with others, what they depend on would be built again.
pub(crate) const BUILD: [&str; 8] =
    ["build", "--locked", "-p", "memtape", "-p", "memtape-recorder", "--features", "memtape/full"];

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ lies in the repository")
}

/// A program in the repository's root, with the environment that a person's shell would give it.
///
/// `cargo run` tells this program about its own package by environment variables. Handed on, they
/// look like a change to build scripts that watch them, and half of the dependencies would be
/// built again each time.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let is_of_cargo = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if is_of_cargo {
            command.env_remove(name);
        }
    }
    command
}

/// The cargo that runs us, with these arguments.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    call(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments)
}

/// A program with these arguments.
pub(crate) fn call(program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = command(program);
    command.args(arguments);
    command
}

/// Runs a program that prints one JSON object on stdout: whether it succeeded, and the object.
pub(crate) fn json_of(program: &mut Command, progress: Stdio) -> Result<(bool, Value)> {
    let name = name(program);
    let output = program.stderr(progress).output().with_context(|| name.clone())?;
    let object = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{name} ({}) printed nothing that can be read", output.status))?;
    Ok((output.status.success(), object))
}

fn name(program: &Command) -> String {
    let path = Path::new(program.get_program());
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Where a release build lies.
pub(crate) fn released(name: &str) -> PathBuf {
    built("release").join(name)
}

/// Where a build of this profile lies.
pub(crate) fn built(profile: &str) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), PathBuf::from)
        .join(profile)
}

/// Tests that were run, by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// They hold.
    pub(crate) passed: u64,
    /// They do not.
    pub(crate) failed: u64,
    /// They were not run.
    pub(crate) ignored: u64,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
        }
    }
}

/// One step of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What it does, in a word or two.
    pub(crate) name: &'static str,
    /// It succeeded.
    pub(crate) is_good: bool,
    /// How long it took.
    pub(crate) took: Duration,
    /// Tests it ran; none for a step that is no test.
    pub(crate) tests: Counts,
    /// What its tests left out on this machine, and what they needed for it.
    pub(crate) left_out: Vec<String>,
}

/// The steps of a command, in the order they were taken.
#[derive(Debug, Default)]
pub(crate) struct Steps(pub(crate) Vec<Step>);

impl Steps {
    /// Takes a step that all later ones need.
    pub(crate) fn take(&mut self, name: &'static str, command: Command) -> Result<()> {
        let step = run(name, command);
        let is_good = step.is_good;
        self.0.push(step);
        ensure!(is_good, "{name} failed");
        Ok(())
    }

    /// Builds these packages as they are released.
    pub(crate) fn build(&mut self, packages: &[&str]) -> Result<()> {
        let mut build = cargo(&["build", "--locked", "--release"]);
        build.args(packages.iter().flat_map(|package| ["-p", package]));
        self.take("build", build)
    }

    /// The path of a program that cargo installs into `target/tools`, in one version
    /// (`name@version`): another version may have other options and other rules.
    pub(crate) fn tool(&mut self, package: &str, options: &[&str]) -> PathBuf {
        let tools = root().join("target/tools");
        let (name, version) = package.split_once('@').unwrap_or((package, ""));
        let installed = std::fs::read_to_string(tools.join(".crates.toml")).unwrap_or_default();
        if !installed.contains(&format!("\"{name} {version} (")) {
            let install = ["install", "--locked", "--root", "target/tools", package];
            self.0.push(run("install a tool", cargo(&[&install, options].concat())));
        }
        tools.join("bin").join(name)
    }

    /// The tests of all steps. A step that failed without a failed test (it did not compile, the
    /// format is off) counts as one failure, so that no failure is ever counted as nothing.
    pub(crate) fn counts(&self) -> Counts {
        self.0.iter().fold(Counts::default(), |sum, step| {
            let failed = step.tests.failed.max(u64::from(!step.is_good));
            sum + Counts { failed, ..step.tests }
        })
    }
}

/// Runs a command as a step, and says how it goes.
pub(crate) fn run(name: &'static str, command: Command) -> Step {
    say(&format!("{name} …\n"));
    let (step, lines) = perform(name, command);
    if !step.is_good {
        let skipped = lines.len().saturating_sub(LINES_SHOWN_MAX);
        say(&format!("{}\n", lines[skipped..].join("\n")));
    }
    let word = if step.is_good { "done" } else { "FAILED" };
    say(&format!("{name}: {word}, {:.1} s\n", step.took.as_secs_f64()));
    step
}

/// The step, and every line it wrote. Summaries of the test harness are added up.
fn perform(name: &'static str, command: Command) -> (Step, Vec<String>) {
    let started = Instant::now();
    let program = command.get_program().to_string_lossy().into_owned();
    let (is_good, lines) = run_to_end(command, STEP_TIME_MAX)
        .unwrap_or_else(|error| (false, vec![format!("{program} cannot be run: {error}")]));
    let tests = lines.iter().filter_map(|line| counts(line)).fold(Counts::default(), Counts::add);
    let left_out = lines.iter().filter_map(|line| line.strip_prefix(LEFT_OUT));
    let left_out = left_out.map(String::from).collect();
    (Step { name, is_good, took: started.elapsed(), tests, left_out }, lines)
}

/// Whether it succeeded, and every line it wrote, of both streams as they came.
fn run_to_end(mut command: Command, time_max: Duration) -> std::io::Result<(bool, Vec<String>)> {
    let started = Instant::now();
    let (pipe, writer) = std::io::pipe()?;
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // Its ends of the pipe would keep the pipe open.
    drop(command);
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        // Split by hand: what a failed test prints need not be UTF-8.
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let _ = send.send(String::from_utf8_lossy(&line).into_owned());
        }
    });
    let mut seen = Vec::new();
    let mut ended: Option<(bool, Instant)> = None;
    loop {
        match lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => seen.push(line),
            Err(RecvTimeoutError::Disconnected) => {
                let is_good =
                    ended.map_or_else(|| child.wait().map(|end| end.success()), |end| Ok(end.0));
                return Ok((is_good?, seen));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        match ended {
            Some((is_good, at)) if at.elapsed() > OUTPUT_TIME_MAX => {
                say("it left a process behind that holds its output open\n");
                return Ok((is_good, seen));
            }
            None if started.elapsed() > time_max => {
                seen.extend(end_all(child.id(), time_max));
                ended = child.wait().ok().map(|_| (false, Instant::now()));
            }
            None => ended = child.try_wait()?.map(|end| (end.success(), Instant::now())),
            Some(_) => {}
        }
    }
}

/// Ends a step that hangs; returns what to say about it.
fn end_all(root: u32, time_max: Duration) -> Vec<String> {
    let processes = descendants::tree(root);
    descendants::kill(&processes);
    let what = format!("not finished after {} s and ended; it ran:", time_max.as_secs());
    let each = processes.into_iter().map(|one| format!("  {} {}", one.id, one.command));
    std::iter::once(what).chain(each).collect()
}

/// The counts in a summary of the test harness.
fn counts(line: &str) -> Option<Counts> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split("; ") {
        let Some((number, word)) = part.split_once(' ') else { continue };
        let Ok(number) = number.parse() else { continue };
        match word {
            "passed" => counts.passed = number,
            "failed" => counts.failed = number,
            "ignored" => counts.ignored = number,
            _ => {}
        }
    }
    Some(counts)
}

/// Progress goes to stderr, so that stdout holds the result alone.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let check = |line: &str, expected: Option<(u64, u64, u64)>| {
            let found = counts(line).map(|found| (found.passed, found.failed, found.ignored));
            assert_eq!(found, expected, "{line}");
        };
        let rest = "0 measured; 3 filtered out; finished in 0.61s";
        check(
            &format!("test result: ok. 41 passed; 0 failed; 2 ignored; {rest}"),
            Some((41, 0, 2)),
        );
        check(
            &format!("test result: FAILED. 4 passed; 9 failed; 0 ignored; {rest}"),
            Some((4, 9, 0)),
        );
        check("test result: nonsense", None);
        check("running 3 tests", None);
        check("", None);
    }

    #[test]
    fn a_step_counts_and_notices() {
        let check = |script: &str, is_good: bool, passed: u64, failed: u64| {
            let mut shell = command("sh");
            shell.args(["-c", script]);
            let (step, _) = perform("a shell", shell);
            let found = (step.is_good, step.tests.passed, step.tests.failed);
            assert_eq!(found, (is_good, passed, failed), "{script}");
        };
        let two = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored';";
        check("true", true, 0, 0);
        check(&format!("{two} {two} printf '\\377\\n'"), true, 4, 0);
        check(
            &format!("{two} echo 'test result: FAILED. 1 passed; 3 failed'; exit 1"),
            false,
            3,
            3,
        );
        check("exit 3", false, 0, 0);
        let (missing, lines) = perform("no program", command("/nonexistent/program"));
        assert!(!missing.is_good);
        assert!(lines[0].contains("/nonexistent/program cannot be run"), "{lines:?}");
    }

    #[test]
    fn a_step_that_hangs_is_ended() {
        let run = |script: &str, time_max: Duration| {
            let mut shell = command("sh");
            shell.args(["-c", script]);
            run_to_end(shell, time_max).expect("a shell")
        };
        let (is_good, lines) = run("echo begun; sleep 1234; echo over", Duration::from_secs(1));
        assert!(!is_good);
        assert_eq!(lines[0], "begun");
        assert_eq!(lines[1], "not finished after 1 s and ended; it ran:");
        assert!(lines.iter().any(|line| line.ends_with(" sleep 1234")), "{lines:?}");
        assert!(!lines.iter().any(|line| line == "over"), "{lines:?}");
        // One that leaves something behind is not waited for.
        let (is_good, lines) = run("echo done; sleep 30 &", Duration::from_secs(60));
        assert_eq!((is_good, lines), (true, vec!["done".to_string()]));
    }
}
