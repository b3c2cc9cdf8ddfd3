//! Decides whether a rank's state is the requested one. This file alone decides it: the agent that
//! rewinds a tape and the coordinator that takes its answer both call [`Outcome::of`].

use crate::tape::rewind::RewindError;

crate::tape::names! {
    /// Outcome of one rank in a capture. In the store a name of another version counts as
    /// [`Outcome::Unreachable`].
    #[derive(Default)]
    pub enum Outcome in "snake_case" {
        /// The rank's answer or snapshot may still come.
        #[default]
        Awaited,
        /// The state at exactly the step asked for.
        Aligned,
        /// The tape no longer covers the step; the snapshot shows another, later one.
        Late,
        /// The rank has not finished the step; the snapshot shows its last state.
        Behind,
        /// The process is dead, its last step is before the step asked for.
        Dead,
        /// The agent has no such tape, or cannot read it.
        NoTape,
        /// No answer in time.
        #[serde(other)]
        Unreachable,
    }
}

impl Outcome {
    /// Outcome of a rewind: the step that it shows, or why it cannot show the one asked for.
    /// Without a step asked for, any state is right. `dead`: the process has ended.
    pub fn of(asked: Option<u64>, rewound: Result<u64, RewindError>, dead: bool) -> Self {
        match rewound {
            Ok(shown) => match asked {
                Some(step) if shown > step => Self::Late,
                Some(step) if shown < step => Self::Behind,
                Some(_) | None => Self::Aligned,
            },
            Err(RewindError::NotCovered { .. }) => Self::Late,
            Err(RewindError::NotReached { .. }) if dead => Self::Dead,
            Err(RewindError::NotReached { .. }) => Self::Behind,
            Err(RewindError::NoOom | RewindError::Damaged | RewindError::TooLarge { .. }) => {
                Self::NoTape
            }
        }
    }
}
