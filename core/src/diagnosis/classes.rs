//! The kinds of trouble, by the names that users, the API and the restart policy know them by, and
//! all that is the same for every case of a class.
//!
//! A new class is a variant here, its [`Facts`], and the code that the facts name. No other file
//! lists the classes: programs iterate over [`Class::ALL`] and ask a class for its facts.

use strum::VariantArray;

use super::alternatives::hearing::Hearing;
use super::alternatives::{allocator, elsewhere, tensors};
use super::case::{Case, Lines};
use super::ground::Ground;
use super::remedy::{self, Remedy};
use super::restart::RestartAnswer;

/// What kind of trouble it is. Where several hold the first of them answers: the more special ones
/// stand first, and what can be wrong about the recording last.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::EnumString,
    strum::IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Class {
    /// Memory of the host: the process, its pinned and shared memory, its workers.
    Host,
    /// Memory of the device that PyTorch's allocator did not give out.
    NonTorch,
    /// Blocks were freed, but other streams still use them, so that nobody can have them.
    DeferredFrees,
    /// Private pools of compiled graphs, one more with each recompilation.
    CompilePools,
    /// Tensors in cycles of Python objects: they wait for the garbage collector, which frees many
    /// at once.
    ReferenceCycles,
    /// Blocks of more and more steps stay alive.
    Leak,
    /// The rank is at another collective than its peers; memory is not to blame.
    Desynchronised,
    /// The allocator's cache is emptied and filled again in most steps.
    CacheThrash,
    /// The allocator holds memory that no tensor uses.
    Fragmentation,
    /// This rank has more work than its peers.
    Imbalance,
    /// The job needs this much: nothing is kept that should not be.
    Pressure,
    /// The recorder does not see enough to say anything else.
    Telemetry,
    /// The snapshots do not explain the growth.
    #[default]
    Unknown,
}

/// What is the same for every case of a class.
pub(super) struct Facts {
    /// The expected course of a growth of this class.
    pub(super) outlook: Outlook,
    /// The memory that is its own.
    pub(super) share: Share,
    /// The upper bound of its confidence.
    pub(super) sure: Sure,
    /// What a restart does about it.
    pub(super) restart: RestartAnswer,
    /// What the sentence says of it.
    pub(super) phrase: Phrase,
    /// What speaks for and against it; the last argument: blocks of all ages stay.
    pub(super) hear: fn(&Case<'_>, &Lines<'_>, bool) -> Hearing,
    /// What to do about it.
    pub(super) remedy: fn(&Case<'_>, &Lines<'_>) -> Remedy,
    /// What to try first, where files are all that is known.
    advice: &'static str,
}

/// The expected course of a growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Until the job dies or stands still; a person can repair it.
    Fault,
    /// The job was set up like this, and it may come to rest.
    Load,
    /// It ends without intervention, or its course is not known: it has no forecast.
    Passing,
    /// It has a forecast, and is no fault that is known.
    Open,
}

/// The memory that is a class's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Tensors of the named line.
    Tensors,
    /// Blocks that were freed and are still in use.
    Deferred,
    /// Blocks in private pools.
    Private,
    /// What is reserved and not in use.
    Free,
    /// Memory of the device outside the allocator.
    Outside,
    /// Memory of the host.
    Host,
    /// None: no line is to blame.
    Nothing,
}

/// The upper bound of a class's confidence, before doubts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sure {
    /// This, in parts per million.
    Ppm(u64),
    /// By the lines that leak.
    ByLines,
    /// By how the line's births go on.
    ByCourse,
    /// By the part that was freed and is still in use.
    ByDeferred,
    /// By the shape of the allocator's free memory.
    ByShape,
    /// By what was read of the device and the host.
    ByReadings,
}

/// What the sentence says of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phrase {
    /// Nothing, or what the sentence works out.
    Plain,
    /// This.
    Always(&'static str),
    /// This, unless the sentence is about this ground and says it already.
    Unless(Ground, &'static str),
}

impl Class {
    /// All of them.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Is it something that goes on until the job dies or stands still, and that a person can
    /// repair? Pressure and imbalance are how the job was set up, emptying the cache costs time
    /// only, and what cycles hold comes back by itself.
    pub fn is_fault(self) -> bool {
        self.facts().outlook == Outlook::Fault
    }

    /// What to try first, where files are all that is known.
    pub(crate) fn advice(self) -> &'static str {
        self.facts().advice
    }

    /// Is it memory that PyTorch's allocator did not give out?
    pub(super) fn is_elsewhere(self) -> bool {
        matches!(self.facts().share, Share::Outside | Share::Host)
    }

    pub(super) fn facts(self) -> &'static Facts {
        match self {
            Self::Host => &HOST,
            Self::NonTorch => &NON_TORCH,
            Self::DeferredFrees => &DEFERRED_FREES,
            Self::CompilePools => &COMPILE_POOLS,
            Self::ReferenceCycles => &REFERENCE_CYCLES,
            Self::Leak => &LEAK,
            Self::Desynchronised => &DESYNCHRONISED,
            Self::CacheThrash => &CACHE_THRASH,
            Self::Fragmentation => &FRAGMENTATION,
            Self::Imbalance => &IMBALANCE,
            Self::Pressure => &PRESSURE,
            Self::Telemetry => &TELEMETRY,
            Self::Unknown => &UNKNOWN,
        }
    }
}

const MORE_FILES: &str = "write more snapshots, some hundred steps apart, and give them all";

const HOST: Facts = Facts {
    outlook: Outlook::Fault,
    share: Share::Host,
    sure: Sure::ByReadings,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    hear: |case, _, _| elsewhere::host(case),
    remedy: |case, _| remedy::elsewhere::host(case),
    advice: MORE_FILES,
};

const NON_TORCH: Facts = Facts {
    outlook: Outlook::Fault,
    share: Share::Outside,
    sure: Sure::ByReadings,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    hear: |case, _, _| elsewhere::non_torch(case),
    remedy: |case, _| remedy::elsewhere::non_torch(case),
    advice: MORE_FILES,
};

const DEFERRED_FREES: Facts = Facts {
    outlook: Outlook::Fault,
    share: Share::Deferred,
    sure: Sure::ByDeferred,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    hear: |case, _, _| allocator::deferred_frees(case),
    remedy: |case, _| remedy::allocator::deferred(case),
    advice: "tensors are handed to other streams with record_stream, and wait for \
             them: let the consuming stream wait for the producer, and free after it \
             has, or limit what is in flight",
};

const COMPILE_POOLS: Facts = Facts {
    outlook: Outlook::Fault,
    share: Share::Private,
    sure: Sure::Ppm(900_000),
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Always("; it lies in private pools of compiled graphs"),
    hear: |case, _, _| allocator::compile_pools(case),
    remedy: |case, _| remedy::allocator::compile_pools(case),
    advice: MORE_FILES,
};

const REFERENCE_CYCLES: Facts = Facts {
    outlook: Outlook::Passing,
    share: Share::Tensors,
    sure: Sure::Ppm(750_000),
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Always("; it comes back in bursts, as reference cycles do"),
    hear: |case, lines, _| tensors::reference_cycles(case, lines),
    remedy: remedy::tensors::cycles,
    advice: MORE_FILES,
};

const LEAK: Facts = Facts {
    outlook: Outlook::Fault,
    share: Share::Tensors,
    sure: Sure::ByLines,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    hear: |case, lines, _| tensors::leak(case, lines),
    remedy: remedy::tensors::leak,
    advice: "look for what keeps the tensors of this line: a list or dict that grows, \
             a loss added up without .item() or .detach(), outputs kept by a hook or \
             a logger",
};

const DESYNCHRONISED: Facts = Facts {
    outlook: Outlook::Fault,
    share: Share::Nothing,
    sure: Sure::Ppm(950_000),
    restart: RestartAnswer::EndsWaiting,
    phrase: Phrase::Always("; it is out of step with its peers"),
    hear: |case, _, leaks| elsewhere::desynchronised(case, leaks),
    remedy: |_, _| remedy::elsewhere::desynchronised(),
    advice: MORE_FILES,
};

const CACHE_THRASH: Facts = Facts {
    outlook: Outlook::Open,
    share: Share::Tensors,
    sure: Sure::Ppm(950_000),
    restart: RestartAnswer::EmptiedAgain,
    phrase: Phrase::Unless(Ground::Churn, "; the cache is emptied in most steps"),
    hear: |case, _, _| allocator::cache_thrash(case),
    remedy: |_, _| remedy::allocator::thrash(),
    advice: "take torch.cuda.empty_cache() out of the loop; without one, the device \
             is so full that the allocator empties its cache itself: lower the peak",
};

const FRAGMENTATION: Facts = Facts {
    outlook: Outlook::Fault,
    share: Share::Free,
    sure: Sure::ByShape,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    hear: |case, _, _| allocator::fragmentation(case),
    remedy: |case, _| remedy::allocator::fragmentation(case),
    advice: "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or fewer different \
             tensor sizes (pad to a few lengths, run the largest batch first)",
};

const IMBALANCE: Facts = Facts {
    outlook: Outlook::Load,
    share: Share::Tensors,
    sure: Sure::Ppm(850_000),
    restart: RestartAnswer::MoreWorkAgain,
    phrase: Phrase::Unless(Ground::Spread, "; it has more work than its peers"),
    hear: tensors::imbalance,
    remedy: |_, lines| remedy::tensors::imbalance(lines),
    advice: "see what this rank does besides: checkpoints loaded without \
             map_location, logging or evaluation on one rank, batches or experts \
             that are not spread evenly",
};

const PRESSURE: Facts = Facts {
    outlook: Outlook::Load,
    share: Share::Tensors,
    sure: Sure::ByCourse,
    restart: RestartAnswer::NeededAgain,
    phrase: Phrase::Plain,
    hear: tensors::pressure,
    remedy: remedy::tensors::pressure,
    advice: "the job needs this memory: a smaller micro-batch, activation \
             checkpointing or more sharding; the peak below says which lines to \
             begin with",
};

const TELEMETRY: Facts = Facts {
    outlook: Outlook::Passing,
    share: Share::Nothing,
    sure: Sure::Ppm(800_000),
    restart: RestartAnswer::Unknown,
    phrase: Phrase::Unless(Ground::Progress, "; too little was recorded to say more"),
    hear: |case, _, _| elsewhere::telemetry(case),
    remedy: |case, _| remedy::elsewhere::telemetry(case),
    advice: MORE_FILES,
};

const UNKNOWN: Facts = Facts {
    outlook: Outlook::Open,
    share: Share::Nothing,
    sure: Sure::Ppm(0),
    restart: RestartAnswer::Unknown,
    phrase: Phrase::Plain,
    hear: |_, _, _| Hearing::default(),
    remedy: |_, _| Remedy::unknown(),
    advice: MORE_FILES,
};
