//! What `memtape export` writes: the state or the past of ranks in the formats of other tools.
//!
//! Each module makes the content of a file from data in memory; none reads a file or a network.
//! PyTorch's pickle is made in `core`.

pub(crate) mod flamegraph;
pub(crate) mod stacks;

/// Formats of `memtape export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// PyTorch's snapshot pickle, for pytorch.org/memory_viz.
    Pickle,
    /// Everything, as JSON.
    Json,
    /// Flame graph of the live bytes by stack, an SVG for a browser.
    Flamegraph,
}

impl Format {
    /// The usual ending of a file's name, and where to open the file.
    pub(crate) fn file(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Pickle => ("pickle", Some("pytorch.org/memory_viz")),
            Self::Json => ("json", None),
            Self::Flamegraph => ("svg", Some("a browser")),
        }
    }
}
