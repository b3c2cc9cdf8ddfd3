//! All programs and their table: `cargo xtask programs`. What each printed and what was found is
//! left in `target/programs/NAME.json`. The exit code is 1 when anything is not as expected.
//!
//! It runs on a machine without Rust, too: `MEMTAPE_TEST_ROOT` is a copy of the repository,
//! `MEMTAPE_TEST_BINARIES` has `memtape` and `libmemtape.so`, `MEMTAPE_TEST_FAKE_CUDA` has the
//! libraries of the fake CUDA and its `run`, and `MEMTAPE_TEST_PYTHON` is a Python with PyTorch. A
//! program whose framework is not installed there is left out.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clap::Parser as _;
use memtape_tests::programs::list::PROGRAMS;
use memtape_tests::programs::table::{self, Row};
use memtape_tests::programs::{Program, drive};
use memtape_tests::{Torch, left_out, root, torch};

/// Real PyTorch programs through the whole product.
#[derive(clap::Parser)]
struct Options {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Programs that run at the same time, each with a coordinator, an agent and a folder of its
    /// own. Most of each is waiting: two for each core are no disturbance.
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Run the faulty programs once more, with their remedy.
    #[arg(long)]
    cured: bool,
    /// Those whose name contains this.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let Some(torch) = torch("real programs") else { return ExitCode::FAILURE };
    let is_wanted =
        |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(part));
    let programs: Vec<&Program> =
        PROGRAMS.iter().filter(|program| is_wanted(program.name)).collect();
    let (rows, is_complete) = run_all(&torch, &programs, &options);
    let text = if options.json { format!("{}\n", table::json(&rows)) } else { table::text(&rows) };
    let _ = std::io::stdout().write_all(text.as_bytes());
    let is_good = is_complete && rows.iter().all(Row::is_good);
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The rows, in the order of the programs, and whether each program could be run.
fn run_all(torch: &Torch, programs: &[&Program], options: &Options) -> (Vec<Row>, bool) {
    let folder = root().join("target/programs");
    let (next, is_complete) = (AtomicUsize::new(0), AtomicBool::new(true));
    let rows = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some((index, program)) = take(&next, programs) {
                    let row = || row(torch, program, options.cured, &folder);
                    // A program that cannot be started is no reason to lose the other rows.
                    match catch_unwind(AssertUnwindSafe(row)) {
                        Ok(Some(row)) => rows.lock().expect("no panic holds it").push((index, row)),
                        Ok(None) => {}
                        Err(_) => is_complete.store(false, Ordering::Relaxed),
                    }
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("no panic holds it");
    rows.sort_by_key(|(index, _)| *index);
    (rows.into_iter().map(|(_, row)| row).collect(), is_complete.into_inner())
}

/// The row of a program, which is shown on stderr; none where it was left out.
fn row(torch: &Torch, program: &Program, with_cured: bool, folder: &Path) -> Option<Row> {
    let run = drive::run(torch, program, false, folder);
    if let Some(module) = run.lacks() {
        left_out(program.name, module);
        return None;
    }
    let has_cure = program.fault.is_some_and(|fault| !fault.cure.is_empty());
    let cured = (with_cured && has_cure).then(|| drive::run(torch, program, true, folder));
    let row = Row::of(program, &run, cured.as_ref());
    // Progress goes to stderr, so that stdout holds the result alone.
    let line = table::text(std::slice::from_ref(&row));
    let line = line.lines().nth(1).unwrap_or_default();
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
    Some(row)
}

fn take<'a>(next: &AtomicUsize, programs: &[&'a Program]) -> Option<(usize, &'a Program)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    programs.get(index).map(|&program| (index, program))
}
