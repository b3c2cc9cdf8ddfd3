//! What is said about one growth, or one failure.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::restart::Restart;
use super::sentence::Parts;
use crate::detector::{Growth, Layer, Scope};
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::births::Generations;
use crate::diagnosis::judges::Alternative;
use crate::diagnosis::judges::facts::Standing;
use crate::diagnosis::judges::remedy::Remedy;
use crate::snapshot::Frame;

/// One line of code that may be the cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Suspect {
    /// Innermost user frame of its stacks, or the one that all of them share; the innermost known
    /// frame when there is none.
    pub frame: Frame,
    /// The stack that grew most through this line, innermost frame first.
    pub stack: Vec<Frame>,
    /// How many stacks through this line grew.
    pub stacks: u32,
    /// Bytes grown between the two steps on the suspect rank.
    pub grown_bytes: u64,
    /// Median of the same over the peers.
    pub peer_bytes: u64,
    /// Live blocks at the later step.
    pub blocks: u64,
    /// Distinct steps in which those blocks were allocated.
    pub allocation_steps: u64,
}

/// What the snapshots say about one growth.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Diagnosis {
    /// What kind of trouble it is.
    pub class: Class,
    /// Which account grows, and who: as it was asked.
    pub layer: Layer,
    /// Who grows.
    pub scope: Scope,
    /// The line of code that allocated what is kept; for memory of workers the line that they ran
    /// most often, which explains no bytes; none when it is not known.
    pub culprit: Option<Frame>,
    /// Its main stack, innermost frame first.
    pub stack: Vec<Frame>,
    /// Share of the growth that is explained, in parts per million. When the stacks show far less
    /// than the detector saw, it is a share of what was seen.
    pub explained_ppm: u32,
    /// How sure it is of the class, in parts per million; 0 for [`Class::Unknown`].
    pub confidence_ppm: u32,
    /// Distinct steps in which the culprit's live blocks were allocated.
    pub allocation_steps: u64,
    /// Their births in time: of the line that comes first, also when it is no culprit.
    pub histogram: Generations,
    /// What speaks for the class, a sentence each.
    pub evidence: Vec<String>,
    /// What speaks against it, a sentence each.
    pub against: Vec<String>,
    /// Every class that there is something to say about, this one first.
    pub alternatives: Vec<Alternative>,
    /// Lines by their growth, largest first, at most [`SUSPECTS_MAX`].
    pub suspects: Vec<Suspect>,
    /// What to try first.
    pub advice: String,
    /// The same with what it is about and what it saves.
    pub remedy: Remedy,
    /// Whether a restart helps, and for how long.
    pub restart: Restart,
    /// Memory has ended, or does within [`SOON_NS`](crate::paging::SOON_NS).
    pub ends_soon: bool,
    /// Steps since the growth began.
    pub age_steps: u64,
    /// Its peers do not grow like it, and there are some.
    pub stands_out: bool,
    /// Peers whose snapshots it was compared with; 0 in records of earlier builds.
    #[serde(default)]
    pub peers_compared: usize,
    /// Steps until memory is full, as the detector saw it; 0 when a request has failed already.
    pub steps_to_oom: Option<u64>,
    /// All of it in one sentence, as it was compared.
    pub sentence: String,
    /// The same in parts, for the newest growth; none about failures, and in records of before.
    #[serde(default)]
    pub parts: Option<Parts>,
    /// The growth as it was compared; none in records of before.
    #[serde(default)]
    pub seen: Option<Growth>,
}

/// What is said where memory that grows is not the matter: of a failure, or of a standstill.
pub(crate) struct Condition {
    pub(crate) class: Class,
    pub(crate) confidence_ppm: u32,
    pub(crate) sentence: String,
    pub(crate) evidence: Vec<String>,
    pub(crate) against: Vec<String>,
    pub(crate) remedy: Remedy,
    pub(crate) restart: Restart,
}

impl Diagnosis {
    /// A condition of the ranks that this growth of 0 bytes names.
    pub(crate) fn of_condition(growth: &Growth, of: Condition) -> Self {
        let alternative = Alternative {
            class: of.class,
            standing: Standing::Holds,
            evidence: of.evidence.clone(),
            against: of.against.clone(),
        };
        Self {
            class: of.class,
            layer: growth.layer,
            scope: growth.scope,
            culprit: None,
            stack: Vec::new(),
            explained_ppm: 0,
            confidence_ppm: of.confidence_ppm,
            allocation_steps: 0,
            histogram: Generations::default(),
            evidence: of.evidence,
            against: of.against,
            alternatives: vec![alternative],
            suspects: Vec::new(),
            advice: of.remedy.text.clone(),
            remedy: of.remedy,
            restart: of.restart,
            ends_soon: false,
            age_steps: 0,
            stands_out: true,
            peers_compared: 0,
            steps_to_oom: None,
            sentence: of.sentence,
            parts: None,
            seen: Some(*growth),
        }
    }

    /// Is its class unknown where that of the other one is known? Else, was it compared with fewer
    /// peers?
    pub(crate) fn has_less_evidence_than(&self, other: &Self) -> bool {
        let evidence = |of: &Self| (of.class != Class::Unknown, of.peers_compared);
        evidence(self) < evidence(other)
    }

    /// Adds what speaks against it.
    pub fn doubt(&mut self, why: &str) {
        self.against.push(why.into());
        if let Some(first) = self.alternatives.first_mut() {
            first.against.push(why.into());
        }
    }
}
