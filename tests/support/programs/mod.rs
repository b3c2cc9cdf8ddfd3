//! Real PyTorch programs, each with one fault or one benign pattern that people meet, driven
//! through the whole product and compared with what is true of them.
//!
//! `list.rs` says what is true of each, `drive.rs` runs one and asks what was found, `table.rs`
//! makes a table of it. The programs themselves are in `tests/torch/programs/`. `main.rs` runs
//! them all, for `cargo xtask programs`.
//!
//! The remedy of a fault is written before the advice is known: the advice is compared with it, and
//! the program runs once more with the remedy applied, as a benign one.
//!
//! What is true of a program never reaches Memtape: the line is a comment in its source, the onset
//! a line that it prints.

pub mod drive;
pub mod list;
pub mod table;

/// A program and what is true of it.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// What it is called in the table.
    pub name: &'static str,
    /// Its file below `tests/torch/programs/`, without the `.py`; some have several rows.
    pub script: &'static str,
    /// Ranks.
    pub ranks: u32,
    /// Devices of each rank.
    pub devices: u32,
    /// Bytes of a device, as the fake runtime reads them (`4G`).
    pub device: &'static str,
    /// Options of `memtape run`.
    pub options: &'static [&'static str],
    /// Arguments of the program.
    pub arguments: &'static [&'static str],
    /// What is in its environment.
    pub environment: &'static [(&'static str, &'static str)],
    /// Its fault; none for a benign one.
    pub fault: Option<Fault>,
    /// It calls an optimizer; without one there is nothing to count a delay in.
    pub has_steps: bool,
    /// It ends with another exit code than 0.
    pub fails: bool,
    /// Short enough for every run of the tests.
    pub is_quick: bool,
}

/// What ought to be found.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Class by its name.
    pub class: &'static str,
    /// Whose fault it is.
    pub who: Who,
    /// The line is marked in the program, and ought to be named.
    pub has_line: bool,
    /// That line is one of workers, known only where the agent can sample them.
    pub is_sampled: bool,
    /// A quiet incident is not enough.
    pub must_page: bool,
    /// Words that name the remedy an expert gives: a call, a setting, a thing. The advice must have
    /// one of them, in any case of letters. With `--cured` the program applies the remedy. Empty
    /// where none was written.
    pub cure: &'static [&'static str],
}

/// Ranks with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// One of several.
    Rank(u32),
    /// All of them.
    All,
}

/// The line that a fault is about carries this comment.
pub const MARK: &str = "# CULPRIT";
