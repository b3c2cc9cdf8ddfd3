//! Sources of the step counts of a state.

/// Source of the step boundaries of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepSource {
    /// Memtape's recorder, which counted them; also in the files that it exports.
    #[default]
    Recorded,
    /// The profiler's `ProfilerStep#`.
    Profiler,
    /// `Optimizer.step#`, which PyTorch writes beside the trace.
    Optimizer,
    /// Stacks of the optimizer in the trace.
    OptimizerStacks,
    /// The most regular stack of the trace: a guess.
    Guessed,
    /// No ends of steps were found.
    None,
}

impl StepSource {
    /// True where the ends of steps are known and not guessed.
    pub fn is_known(self) -> bool {
        !matches!(self, Self::None | Self::Guessed)
    }

    /// True where each step has the number that the program gives it.
    pub fn numbers_steps(self) -> bool {
        matches!(self, Self::Recorded | Self::Profiler)
    }
}
