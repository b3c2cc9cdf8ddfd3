//! Which incidents and captures a list shows.
//!
//! The filters are applied here, to the coordinator's list of a job or of all jobs. JSON keeps
//! every field of what passes.

use std::time::Duration;

use memtape_core::diagnosis::Class;
use memtape_proto::api::{Capture, CaptureState, Incident, IncidentState};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::parse;
use memtape_core::settings::duration;

/// Filters of `memtape incidents`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct IncidentFilter {
    /// Show only incidents of this rank [default: all ranks].
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Show only incidents of this class [default: all classes].
    #[arg(long, value_parser = class_names(), hide_possible_values = true)]
    pub(crate) class: Option<String>,
    /// Show only incidents that were opened within this time, such as 30m or 2d [default: ever].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Show only incidents that are open.
    #[arg(long)]
    pub(crate) open: bool,
}

/// Filters of `memtape captures`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct CaptureFilter {
    /// Show only captures that this rank triggered [default: all].
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Show only captures with this trigger, such as growth, out_of_memory, manual or
    /// baseline (a healthy state, kept to compare later ones with) [default: all].
    #[arg(long, value_name = "TRIGGER")]
    pub(crate) trigger: Option<String>,
    /// Show only captures that were requested within this time, such as 30m or 2d [default: ever].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Show only captures that are being collected.
    #[arg(long)]
    pub(crate) open: bool,
}

fn class_names() -> clap::builder::PossibleValuesParser {
    Class::ALL.iter().map(|class| class.as_str()).collect::<Vec<_>>().into()
}

impl IncidentFilter {
    /// True when the list shows this incident.
    pub(crate) fn passes(&self, incident: &Incident, now_ns: i64) -> bool {
        self.rank.is_none_or(|rank| incident.rank == rank)
            && self.class.as_ref().is_none_or(|class| incident.class.as_str() == class)
            && self.since.is_none_or(|since| is_within(incident.opened_wall_ns, since, now_ns))
            && (!self.open || incident.state == IncidentState::Open)
    }
}

impl CaptureFilter {
    /// True when the list shows this capture.
    pub(crate) fn passes(&self, capture: &Capture, now_ns: i64) -> bool {
        self.rank.is_none_or(|rank| capture.trigger_rank == Some(rank))
            && self.trigger.as_ref().is_none_or(|trigger| capture.trigger == *trigger)
            && self.since.is_none_or(|since| is_within(capture.requested_wall_ns, since, now_ns))
            && (!self.open || capture.state == CaptureState::Collecting)
    }
}

fn is_within(wall_ns: i64, time: Duration, now_ns: i64) -> bool {
    let age_ns = now_ns.saturating_sub(wall_ns);
    u64::try_from(age_ns).map_or(true, |age_ns| Duration::from_nanos(age_ns) <= time)
}

/// Keeps the items of a list that pass. What has an unknown shape stays.
pub(crate) fn keep<T: DeserializeOwned>(
    answer: &mut Value,
    list: &str,
    passes: impl Fn(&T) -> bool,
) {
    if let Some(items) = answer.get_mut(list).and_then(Value::as_array_mut) {
        items.retain(|item| parse::<T>(item).map_or(true, |item| passes(&item)));
    }
}

#[cfg(test)]
mod tests {
    use memtape_proto::api::Named;
    use serde_json::json;

    use super::*;

    const NOW_NS: i64 = 1_795_244_404_000_000_000;

    #[test]
    fn incidents_are_filtered_by_each_fact() {
        let incident = Incident {
            rank: 2,
            class: Class::Leak.into(),
            state: IncidentState::Open.into(),
            opened_wall_ns: NOW_NS - 60_000_000_000,
            ..Incident::default()
        };
        let check = |filter: IncidentFilter, expected: bool| {
            assert_eq!(filter.passes(&incident, NOW_NS), expected, "{filter:?}");
        };
        let none = IncidentFilter::default;
        check(none(), true);
        check(IncidentFilter { rank: Some(2), open: true, ..none() }, true);
        check(IncidentFilter { rank: Some(1), ..none() }, false);
        check(IncidentFilter { class: Some("leak".into()), ..none() }, true);
        check(IncidentFilter { class: Some("host".into()), ..none() }, false);
        check(IncidentFilter { since: Some(Duration::from_secs(59)), ..none() }, false);
        check(IncidentFilter { since: Some(Duration::from_secs(61)), ..none() }, true);
        let closed = Incident { state: IncidentState::Closed.into(), ..incident.clone() };
        assert!(!IncidentFilter { open: true, ..none() }.passes(&closed, NOW_NS));
    }

    #[test]
    fn captures_are_filtered_by_each_fact() {
        let capture = Capture {
            trigger: "growth".into(),
            trigger_rank: Some(2),
            state: Named::Known(CaptureState::Complete),
            requested_wall_ns: NOW_NS,
            ..Capture::default()
        };
        let check = |filter: CaptureFilter, expected: bool| {
            assert_eq!(filter.passes(&capture, NOW_NS), expected, "{filter:?}");
        };
        let none = CaptureFilter::default;
        check(CaptureFilter { rank: Some(2), trigger: Some("growth".into()), ..none() }, true);
        check(CaptureFilter { rank: Some(0), ..none() }, false);
        check(CaptureFilter { trigger: Some("oom".into()), ..none() }, false);
        check(CaptureFilter { open: true, ..none() }, false);
    }

    #[test]
    fn json_keeps_every_field_of_what_passes() {
        let mut answer = json!({ "incidents": [{ "rank": 1, "new": 5 }, { "rank": 2 }], "x": 1 });
        keep(&mut answer, "incidents", |incident: &Incident| incident.rank == 1);
        assert_eq!(answer, json!({ "incidents": [{ "rank": 1, "new": 5 }], "x": 1 }));
    }
}
