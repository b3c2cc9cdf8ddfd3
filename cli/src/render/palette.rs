//! Colours by their meaning. A state is always a word too; colour only helps to find it.

use crossterm::style::{Attribute, Color, Stylize};
use memtape_core::paging::Urgency;
use memtape_proto::api::{Incident, IncidentState, JobState, Named, RankState};

use crate::render::threads::is_silenced;
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
        Some(JobState::Incident | JobState::Failed) => Meaning::Bad,
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

/// The meaning of an incident's state: of an open one, how urgent it is.
pub(crate) fn of_incident(incident: &Incident) -> Meaning {
    if incident.state == IncidentState::Open && is_silenced(incident) {
        return Meaning::Plain;
    }
    match (incident.state.known(), incident.urgency.known()) {
        (Some(IncidentState::Open), Some(Urgency::Page)) => Meaning::Bad,
        (Some(IncidentState::Open), Some(Urgency::Ticket)) => Meaning::Warn,
        (Some(IncidentState::Open), Some(Urgency::Notice) | None) | (None, _) => Meaning::Plain,
        (Some(IncidentState::Closed), _) => Meaning::Dim,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_painted_only_where_it_may_be() {
        assert_eq!(Meaning::Bad.paint("growing"), "growing");
        let painted = Meaning::Bad.painted("growing");
        assert!(painted.starts_with('\u{1b}') && painted.contains("growing"), "{painted:?}");
        assert_eq!(Meaning::Plain.painted("growing"), "growing");
    }

    #[test]
    fn an_open_incident_has_the_colour_of_its_urgency() {
        let of = |state: IncidentState, urgency: Named<Urgency>| {
            of_incident(&Incident { state: state.into(), urgency, ..Incident::default() })
        };
        assert_eq!(of(IncidentState::Open, Urgency::Page.into()), Meaning::Bad);
        assert_eq!(of(IncidentState::Open, Urgency::Ticket.into()), Meaning::Warn);
        assert_eq!(of(IncidentState::Open, Urgency::Notice.into()), Meaning::Plain);
        assert_eq!(of(IncidentState::Open, Named::of("of a newer program")), Meaning::Plain);
        assert_eq!(of(IncidentState::Closed, Urgency::Page.into()), Meaning::Dim);
    }
}
