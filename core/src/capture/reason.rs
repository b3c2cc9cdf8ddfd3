//! Why a capture is taken: the name of each reason, its rank, its urgency and its gravity.
//!
//! A new reason is a variant here, an arm in each `match` of this file, a call in `triggers.rs`,
//! and the caller in the coordinator. The compiler names every arm that is missing.

/// Why a capture was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The detector found growth on this rank.
    Growth {
        /// Global rank.
        rank: u32,
    },
    /// A request for memory failed for good on this rank.
    OutOfMemory {
        /// Global rank.
        rank: u32,
    },
    /// This rank's process died.
    Death {
        /// Global rank.
        rank: u32,
    },
    /// Allocations had to be retried on this rank.
    Retries {
        /// Global rank.
        rank: u32,
    },
    /// This rank holds nearly all of its device.
    Reserved {
        /// Global rank.
        rank: u32,
    },
    /// Asked for by hand.
    Manual,
    /// A restart is about to happen.
    Restart,
    /// A healthy state to compare with later.
    Baseline,
}

/// How far a reason overrides the limits of captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Waits for the interval and for the budget.
    Usual,
    /// Waits for a budget of twice the bytes only.
    Urgent,
    /// Waits for nothing.
    Manual,
}

impl Reason {
    /// The name in output and in the store.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Growth { .. } => "growth",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::Death { .. } => "death",
            Self::Retries { .. } => "retries",
            Self::Reserved { .. } => "reserved",
            Self::Manual => "manual",
            Self::Restart => "restart",
            Self::Baseline => "baseline",
        }
    }

    /// The reason with this name, about this rank.
    pub fn from_name(name: &str, rank: u32) -> Option<Self> {
        let all = [
            Self::Growth { rank },
            Self::OutOfMemory { rank },
            Self::Death { rank },
            Self::Retries { rank },
            Self::Reserved { rank },
            Self::Manual,
            Self::Restart,
            Self::Baseline,
        ];
        // Older stores have this name.
        let name = if name == "person" { "manual" } else { name };
        all.into_iter().find(|reason| reason.as_str() == name)
    }

    /// The rank that it is about.
    pub fn rank(&self) -> Option<u32> {
        match *self {
            Self::Growth { rank }
            | Self::OutOfMemory { rank }
            | Self::Death { rank }
            | Self::Retries { rank }
            | Self::Reserved { rank } => Some(rank),
            Self::Manual | Self::Restart | Self::Baseline => None,
        }
    }

    pub(crate) fn urgency(&self) -> Urgency {
        match self {
            Self::Manual => Urgency::Manual,
            Self::OutOfMemory { .. } | Self::Death { .. } | Self::Restart => Urgency::Urgent,
            Self::Growth { .. } | Self::Retries { .. } | Self::Reserved { .. } | Self::Baseline => {
                Urgency::Usual
            }
        }
    }

    /// Of two reasons for one capture the one of higher gravity names it.
    pub(crate) fn gravity(&self) -> u8 {
        match self {
            Self::OutOfMemory { .. } => 6,
            Self::Death { .. } => 5,
            Self::Retries { .. } => 4,
            Self::Growth { .. } | Self::Restart => 3,
            Self::Reserved { .. } => 2,
            Self::Manual => 1,
            Self::Baseline => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_restored_by_its_name() {
        let rank = 7;
        let mut reason = Reason::Growth { rank };
        loop {
            assert_eq!(Reason::from_name(reason.as_str(), rank), Some(reason.clone()));
            reason = match reason {
                Reason::Growth { rank } => Reason::OutOfMemory { rank },
                Reason::OutOfMemory { rank } => Reason::Death { rank },
                Reason::Death { rank } => Reason::Retries { rank },
                Reason::Retries { rank } => Reason::Reserved { rank },
                Reason::Reserved { .. } => Reason::Manual,
                Reason::Manual => Reason::Restart,
                Reason::Restart => Reason::Baseline,
                Reason::Baseline => break,
            };
        }
        assert_eq!(Reason::from_name("person", rank), Some(Reason::Manual));
        assert_eq!(Reason::from_name("weather", rank), None);
    }
}
