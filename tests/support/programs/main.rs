//! All programs, two at a time, and their table: `cargo xtask programs`. What each printed and what
//! was found is left in `target/programs/NAME.json`. The exit code is 1 when anything is not as
//! expected.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser as _;
use memtape_tests::programs::list::PROGRAMS;
use memtape_tests::programs::table::{self, Row};
use memtape_tests::programs::{Program, drive};
use memtape_tests::{Torch, root, torch};

/// Programs that run at the same time: most of each is waiting.
const AT_ONCE: usize = 2;

/// Real PyTorch programs through the whole product.
#[derive(clap::Parser)]
struct Options {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Programs that run at the same time.
    #[arg(long, default_value_t = AT_ONCE)]
    at_once: usize,
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
    let rows = run_all(&torch, &programs, options.at_once);
    let text = if options.json { format!("{}\n", table::json(&rows)) } else { table::text(&rows) };
    let _ = std::io::stdout().write_all(text.as_bytes());
    if rows.iter().all(Row::is_good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The rows, in the order of the programs.
fn run_all(torch: &Torch, programs: &[&Program], at_once: usize) -> Vec<Row> {
    let folder = root().join("target/programs");
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                while let Some((index, program)) = take(&next, programs) {
                    let row = Row::of(program, &drive::run(torch, program, &folder));
                    // Progress goes to stderr, so that stdout holds the result alone.
                    let line = table::text(std::slice::from_ref(&row));
                    let line = line.lines().last().unwrap_or_default();
                    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
                    rows.lock().expect("no panic holds it").push((index, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("no panic holds it");
    rows.sort_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn take<'a>(next: &AtomicUsize, programs: &[&'a Program]) -> Option<(usize, &'a Program)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    programs.get(index).map(|&program| (index, program))
}
