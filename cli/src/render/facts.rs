//! Facts of an incident or a verdict: what each is about, and its text.

/// What a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The id, state and class of an incident.
    Incident,
    /// The class of a verdict.
    Class,
    /// The job, rank and device.
    Job,
    /// The line of an incident.
    Culprit,
    /// The line of a verdict.
    Line,
    /// How much it has grown.
    Growth,
    /// Where the growth began.
    Onset,
    /// When memory will be full.
    Forecast,
    /// When the incident was opened.
    Opened,
    /// Why it was closed.
    Closed,
    /// What to do.
    Advice,
    /// Whether a restart helps.
    Restart,
}

impl Topic {
    /// The name before the text.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Incident => "incident",
            Self::Class => "class",
            Self::Job => "job",
            Self::Culprit => "culprit",
            Self::Line => "line",
            Self::Growth => "growth",
            Self::Onset => "onset",
            Self::Forecast => "forecast",
            Self::Opened => "opened",
            Self::Closed => "closed",
            Self::Advice => "try first",
            Self::Restart => "restart",
        }
    }

    /// True for what to do about it.
    pub(crate) fn is_remedy(self) -> bool {
        matches!(self, Self::Advice | Self::Restart)
    }
}
