//! Colours by their meaning. A state is always a word too; colour only helps to find it.

use crossterm::style::{Attribute, Color, Stylize};
use memtape_proto::api::{IncidentState, JobState, Named, RankState};

use crate::terminal;

/// Meaning of a coloured word.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Meaning {
    /// Asks for action: an incident that pages, a failure.
    Bad,
    /// Needs attention.
    Warn,
    /// Is as it should be.
    Good,
    /// Matters less than other text.
    Dim,
    /// Matters more than other text.
    Strong,
    /// Normal text without a colour.
    #[default]
    Plain,
}

impl Meaning {
    /// One of the 8 colours that every theme keeps readable, or its grey.
    pub(crate) fn color(self) -> Option<Color> {
        match self {
            Self::Bad => Some(Color::DarkRed),
            Self::Warn => Some(Color::DarkYellow),
            Self::Good => Some(Color::DarkGreen),
            Self::Dim => Some(Color::DarkGrey),
            Self::Strong | Self::Plain => None,
        }
    }

    /// Letters that are drawn otherwise.
    pub(crate) fn attribute(self) -> Option<Attribute> {
        matches!(self, Self::Bad | Self::Strong).then_some(Attribute::Bold)
    }

    /// The text in the colour of its meaning, where text has colours.
    pub(crate) fn paint(self, text: &str) -> String {
        if terminal::is_coloured() { self.painted(text) } else { text.to_string() }
    }

    fn painted(self, text: &str) -> String {
        let mut styled = text.stylize();
        styled.style_mut().foreground_color = self.color();
        if let Some(attribute) = self.attribute() {
            styled = styled.attribute(attribute);
        }
        styled.to_string()
    }
}

/// The meaning of a job's state.
pub(crate) fn of_job(state: &Named<JobState>) -> Meaning {
    match state.known() {
        Some(JobState::Leaking | JobState::Failed) => Meaning::Bad,
        Some(JobState::Watching | JobState::Behind | JobState::Stalled) => Meaning::Warn,
        Some(JobState::Silent | JobState::Disconnected) => Meaning::Warn,
        Some(JobState::Healthy) => Meaning::Good,
        Some(JobState::Ended) => Meaning::Dim,
        Some(JobState::Warming) | None => Meaning::Plain,
    }
}

/// The meaning of a rank's state.
pub(crate) fn of_rank(state: &Named<RankState>) -> Meaning {
    match state.known() {
        Some(RankState::Growing | RankState::Failed) => Meaning::Bad,
        Some(RankState::Watching | RankState::Behind | RankState::Stalled) => Meaning::Warn,
        Some(RankState::Silent | RankState::Disconnected) => Meaning::Warn,
        Some(RankState::Healthy) => Meaning::Good,
        Some(RankState::Ended) => Meaning::Dim,
        Some(RankState::Warming) | None => Meaning::Plain,
    }
}

/// The meaning of an incident's state: a notice that is open does not page.
pub(crate) fn of_incident(state: &Named<IncidentState>, pages: bool) -> Meaning {
    match state.known() {
        Some(IncidentState::Open) if pages => Meaning::Bad,
        Some(IncidentState::Open) => Meaning::Warn,
        Some(IncidentState::Closed) => Meaning::Dim,
        None => Meaning::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_painted_only_where_it_may_be() {
        assert_eq!(Meaning::Bad.paint("leaking"), "leaking");
        let painted = Meaning::Bad.painted("leaking");
        assert!(painted.starts_with('\u{1b}') && painted.contains("leaking"), "{painted:?}");
        assert_eq!(Meaning::Plain.painted("leaking"), "leaking");
    }

    #[test]
    fn a_notice_is_no_page() {
        let open = Named::Known(IncidentState::Open);
        assert_eq!(of_incident(&open, true), Meaning::Bad);
        assert_eq!(of_incident(&open, false), Meaning::Warn);
    }
}
