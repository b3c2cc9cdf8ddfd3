//! The time at which the memory of a rank in a capture is shown.

use strum::VariantArray;

use crate::diagnosis::Class;

crate::tape::names! {
    /// The time at which the memory of a rank in a capture is shown.
    #[derive(Default)]
    pub enum HeldAt in "snake_case" {
        /// The end of the step of the capture.
        #[default]
        StepEnd,
        /// The peak of the steps whose events the capture has. Memory that each step allocates and
        /// frees is alive then, and at no end of a step.
        Peak,
        /// The last request for memory that failed for good. It failed after the end of the step
        /// of the capture, and the rank has not gone on since.
        FailedRequest,
    }
}

impl HeldAt {
    /// All of them.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The time that explains an incident of this class.
    pub fn of(class: Class) -> Self {
        match class {
            Class::Imbalance | Class::Pressure => Self::Peak,
            Class::OutOfMemory => Self::FailedRequest,
            Class::Died
            | Class::Host
            | Class::NonTorch
            | Class::DeferredFrees
            | Class::CompilePools
            | Class::ReferenceCycles
            | Class::Leak
            | Class::Desynchronised
            | Class::CacheThrash
            | Class::Fragmentation
            | Class::Telemetry
            | Class::Unknown => Self::StepEnd,
        }
    }

    /// Returns the time at which peers are compared: a rank that goes on has no failed request, and
    /// its peak is nearest to one.
    pub fn of_others(self) -> Self {
        match self {
            Self::StepEnd => Self::StepEnd,
            Self::Peak | Self::FailedRequest => Self::Peak,
        }
    }
}
