//! Which incidents and captures a list shows.
//!
//! The filters are applied here, to the coordinator's list of a job or of all jobs. JSON keeps
//! every field of what passes.

use std::time::Duration;

use memtape_core::settings::duration;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::parse;

/// Filters of `memtape incidents` and `memtape captures`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Filter {
    /// Show only incidents of this rank, or captures that it triggered [default: all].
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Show only incidents that were opened, or captures that were requested, within this time,
    /// such as 30m or 2d [default: ever].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Show only incidents that are open, or captures that are being collected.
    #[arg(long)]
    pub(crate) open: bool,
}

impl Filter {
    /// True when the list shows what is of this rank, began at this time, and is open or not.
    pub(crate) fn passes(
        &self,
        rank: Option<u32>,
        wall_ns: i64,
        is_open: bool,
        now_ns: i64,
    ) -> bool {
        let age_ns = now_ns.saturating_sub(wall_ns);
        // What is to come is new: clocks of two machines may differ a little.
        let age = u64::try_from(age_ns).map_or(Duration::ZERO, Duration::from_nanos);
        self.rank.is_none_or(|wanted| rank == Some(wanted))
            && self.since.is_none_or(|since| age <= since)
            && (is_open || !self.open)
    }
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
    use memtape_proto::api::Incident;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_fact_is_a_filter() {
        let now_ns = 1_795_244_404_000_000_000;
        let check = |filter: Filter, is_open: bool, expected: bool| {
            let found = filter.passes(Some(2), now_ns - 60_000_000_000, is_open, now_ns);
            assert_eq!(found, expected, "{filter:?}");
        };
        let none = Filter::default;
        let since = |seconds| Filter { since: Some(Duration::from_secs(seconds)), ..none() };
        check(none(), false, true);
        check(Filter { rank: Some(2), open: true, ..none() }, true, true);
        check(Filter { rank: Some(1), ..none() }, true, false);
        check(Filter { open: true, ..none() }, false, false);
        check(since(59), true, false);
        check(since(61), true, true);
    }

    #[test]
    fn json_keeps_every_field_of_the_filtered_items() {
        let mut answer = json!({ "incidents": [{ "rank": 1, "new": 5 }, { "rank": 2 }], "x": 1 });
        keep(&mut answer, "incidents", |incident: &Incident| incident.rank == 1);
        assert_eq!(answer, json!({ "incidents": [{ "rank": 1, "new": 5 }], "x": 1 }));
    }
}
