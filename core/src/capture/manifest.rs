//! What a capture collects: parts, and the manifest that closes it.

use alloc::string::String;
use alloc::vec::Vec;

use crate::capture::outcome::Outcome;
use crate::capture::reason::Reason;
use serde::{Deserialize, Serialize};

/// Name of a capture (`cap-…`). The shell makes it up: uniqueness over restarts needs a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct CaptureId(pub String);

/// One rank's part of a capture, from its agent's answer to the API. An answer has neither rank nor
/// node, and the size and hash of the snapshot that its agent will send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Part {
    /// Id of the capture.
    pub capture: String,
    /// The rank.
    pub rank: u32,
    /// Name of its tape.
    pub tape_id: String,
    /// Name of its node.
    pub node: String,
    /// What became of it.
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "crate::tape::schema::words::<Outcome>")
    )]
    pub outcome: Outcome,
    /// The step its snapshot shows.
    pub step: u64,
    /// End of that step, in nanoseconds of Unix time.
    pub wall_ns: i64,
    /// How far that time may be off.
    pub wall_error_ns: u64,
    /// Whether its process had ended.
    pub dead: bool,
    /// The earlier step its snapshot is compared with; 0 for none.
    pub before_step: u64,
    /// Stored size of its snapshot, compressed.
    pub bytes: u64,
    /// BLAKE3 of the stored snapshot in hexadecimal; null where none is stored.
    #[serde(with = "hexadecimal")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub hash: Option<[u8; 32]>,
    /// More about the outcome.
    pub detail: String,
}

impl Part {
    /// Is its snapshot of exactly the step that was asked for?
    pub fn is_aligned(&self) -> bool {
        self.outcome == Outcome::Aligned
    }
}

/// What the shell must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a node's agent.
    Ask {
        /// Name of the node.
        node: String,
        /// Which capture.
        capture: CaptureId,
        /// Its tapes.
        tapes: Vec<String>,
        /// T; 0 means each rank's present state.
        step: u64,
        /// T0; 0 means none.
        before: u64,
        /// Time left until the manifest is closed, in nanoseconds.
        deadline_ns: u64,
        /// The tape of the rank whose worker processes are sampled, too.
        sample_workers: Option<String>,
    },
    /// A capture is over: store its manifest.
    Close(Manifest),
}

/// The result of one capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Which capture.
    pub id: CaptureId,
    /// Name of the job.
    pub job: String,
    /// Which attempt at it.
    pub attempt: u32,
    /// Why it was taken.
    pub reason: Reason,
    /// T; 0 when each rank was asked for its present state.
    pub step: u64,
    /// T0; 0 when there is none.
    pub before_step: u64,
    /// When it was asked for, on the shell's monotonic clock, in nanoseconds.
    pub requested_ns: u64,
    /// When it was closed, on the same clock.
    pub closed_ns: u64,
    /// Every rank is aligned and stored.
    pub complete: bool,
    /// It is of one rank, which asked for it without proof of its identity.
    pub is_alone: bool,
    /// One for each rank, in order of ranks.
    pub parts: Vec<Part>,
}

impl Manifest {
    /// Number of ranks whose stored snapshot shows exactly T.
    pub fn aligned(&self) -> usize {
        self.parts.iter().filter(|part| part.is_aligned()).count()
    }

    /// The ranks that are not aligned, each with what became of it.
    pub fn missing(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| !part.is_aligned())
    }
}

/// A hash as JSON has it. Another text than 64 hexadecimal digits is no hash.
mod hexadecimal {
    use alloc::format;
    use alloc::string::String;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        hash: &Option<[u8; 32]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let digits = |bytes: &[u8; 32]| -> String {
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        hash.as_ref().map(digits).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<[u8; 32]>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        Ok(text.as_deref().and_then(hash))
    }

    fn hash(text: &str) -> Option<[u8; 32]> {
        let mut hash = [0; 32];
        let is_whole = text.len() == 2 * hash.len() && text.is_ascii();
        for (index, byte) in hash.iter_mut().enumerate().filter(|_| is_whole) {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        is_whole.then_some(hash)
    }
}
