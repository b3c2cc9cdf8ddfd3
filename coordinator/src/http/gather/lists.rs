//! Lists of several shards as one: in the order of the route, and no longer than its list is.
//!
//! Rows are copied as their owners wrote them; of each only what orders it is read. Where there are
//! more rows than one list may have, each shard has an equal part, with its newest: what is in one
//! shard hides nothing of another. A node and a job that several shards know is one row.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use axum::body::Bytes;
use memtape_core::limits::{CAPTURES_LISTED_MAX, PARTS_LISTED_MAX, ROWS_LISTED_MAX};
use memtape_core::sharing::equal_parts;
use memtape_proto::api::MissingShard;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::http::gather::owners::Absent;

pub(super) const JOBS: List = List { rows: "jobs", order: Order::Job, rows_max: usize::MAX };
pub(super) const NODES: List = List { rows: "nodes", order: Order::Node, rows_max: usize::MAX };
pub(super) const SHARDS: List = List { rows: "shards", order: Order::Shard, rows_max: usize::MAX };
pub(super) const INCIDENTS: List =
    List { rows: "incidents", order: Order::Newest, rows_max: ROWS_LISTED_MAX };
pub(super) const ACTIONS: List =
    List { rows: "actions", order: Order::Newest, rows_max: ROWS_LISTED_MAX };
pub(super) const CAPTURES: List =
    List { rows: "captures", order: Order::Newest, rows_max: CAPTURES_LISTED_MAX };

/// A route that answers a list.
#[derive(Debug, PartialEq)]
pub(super) struct List {
    /// The field with the rows.
    rows: &'static str,
    order: Order,
    rows_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Job,
    Node,
    Shard,
    Newest,
}

/// The list of one shard, as its owner answered it.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) shard: u16,
    pub(super) list: Bytes,
}

/// An answer by its fields.
type Fields<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// What is read of a row, whatever it is about.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Row<'a> {
    #[serde(borrow)]
    job: Cow<'a, str>,
    #[serde(borrow)]
    node: Cow<'a, str>,
    shard: u16,
    connected: bool,
    #[serde(
        alias = "last_report_wall_ns",
        alias = "opened_wall_ns",
        alias = "requested_wall_ns",
        alias = "started_wall_ns",
        alias = "wall_ns"
    )]
    since_wall_ns: i64,
    /// Of a capture.
    ranks: usize,
}

impl List {
    /// An answer that is such a list.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn check(&self, answer: Bytes) -> Result<Bytes, Absent> {
        self.read(&answer).map_err(|_| Absent::NoList)?;
        Ok(answer)
    }

    /// One list of those of several shards, the own one first, with the missing shards.
    ///
    /// # Errors
    /// One of them was not checked.
    pub(super) fn merge(
        &self,
        lists: &[Owned],
        missing: &[MissingShard],
    ) -> serde_json::Result<Vec<u8>> {
        let mut rows = Vec::new();
        for of in lists {
            rows.extend(self.read(&of.list)?.into_iter().map(|(row, raw)| (of.shard, row, raw)));
        }
        rows.sort_by(|(_, a, _), (_, b, _)| self.key(a).cmp(&self.key(b)));
        rows.dedup_by(|(_, a, _), (_, b, _)| self.is_same(a, b));
        let holders: Vec<_> = rows.iter().map(|(shard, ..)| (*shard, ())).collect();
        let is_kept = equal_parts(&holders, self.rows_max);
        let mut parts = 0_usize;
        let kept = rows.into_iter().zip(is_kept).filter(|(_, is_kept)| *is_kept);
        let kept = kept.map(|((_, row, raw), _)| {
            parts = parts.saturating_add(row.ranks);
            match self.rows == CAPTURES.rows && parts > PARTS_LISTED_MAX {
                true => without_parts(raw).map(Cow::Owned),
                false => Ok(Cow::Borrowed(raw)),
            }
        });
        let kept = to_raw_value(&kept.collect::<serde_json::Result<Vec<Cow<'_, RawValue>>>>()?)?;
        let missing = to_raw_value(missing)?;
        let own = lists.first().map(|own| own.list.as_ref()).unwrap_or(b"{}");
        let mut answer: Fields<'_> = serde_json::from_slice(own)?;
        answer.insert(Cow::Borrowed(self.rows), &kept);
        answer.insert(Cow::Borrowed("missing_shards"), &missing);
        serde_json::to_vec(&answer)
    }

    fn read<'a>(&self, answer: &'a [u8]) -> serde_json::Result<Vec<(Row<'a>, &'a RawValue)>> {
        let fields: Fields<'_> = serde_json::from_slice(answer)?;
        let rows = fields.get(self.rows).map_or("null", |rows| rows.get());
        let rows: Vec<&RawValue> = serde_json::from_str(rows)?;
        rows.into_iter().map(|raw| Ok((serde_json::from_str(raw.get())?, raw))).collect()
    }

    /// Of the same job, node or shard the connected and newest is first.
    fn key<'a>(&self, row: &'a Row<'_>) -> (&'a str, u16, bool, Reverse<i64>) {
        let (name, shard) = match self.order {
            Order::Job => (&*row.job, 0),
            Order::Node => (&*row.node, 0),
            Order::Shard => ("", row.shard),
            Order::Newest => ("", 0),
        };
        (name, shard, !row.connected, Reverse(row.since_wall_ns))
    }

    fn is_same(&self, a: &Row<'_>, b: &Row<'_>) -> bool {
        match self.order {
            Order::Job => a.job == b.job,
            Order::Node => a.node == b.node,
            Order::Shard => a.shard == b.shard,
            Order::Newest => false,
        }
    }
}

/// A capture without its parts, as in a list that has too many of them.
fn without_parts(capture: &RawValue) -> serde_json::Result<Box<RawValue>> {
    let mut fields: Map<String, Value> = serde_json::from_str(capture.get())?;
    for (field, value) in
        [("parts", Value::Array(Vec::new())), ("missing", Value::Array(Vec::new()))]
    {
        fields.insert(field.to_string(), value);
    }
    fields.insert("parts_left_out".to_string(), Value::Bool(true));
    to_raw_value(&fields)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn merged(list: &List, lists: &[Value]) -> Value {
        let lists = (0..).zip(lists);
        let owned = lists.map(|(shard, list)| Owned { shard, list: list.to_string().into() });
        let missing = [MissingShard { shard: 9, ..MissingShard::default() }];
        let merged = list.merge(&owned.collect::<Vec<_>>(), &missing).unwrap();
        serde_json::from_slice(&merged).unwrap()
    }

    fn texts(list: &Value, field: &str) -> Vec<String> {
        list.as_array().unwrap().iter().map(|row| row[field].to_string()).collect()
    }

    #[test]
    fn jobs_are_in_the_order_of_their_names_and_each_is_there_once() {
        let job = |name: &str, started: i64| json!({"job": name, "started_wall_ns": started});
        let all = merged(
            &JOBS,
            &[
                json!({"jobs": [job("a", 1), job("d", 1)], "new_field": 7, "missing_shards": []}),
                json!({"jobs": [job("b", 1), job("d", 2)]}),
                json!({"jobs": []}),
            ],
        );
        assert_eq!(texts(&all["jobs"], "job"), ["\"a\"", "\"b\"", "\"d\""]);
        assert_eq!(all["jobs"][2]["started_wall_ns"], 2, "the newest of two");
        assert_eq!((&all["new_field"], &all["missing_shards"][0]["shard"]), (&json!(7), &json!(9)));
    }

    #[test]
    fn a_node_of_several_shards_is_the_one_that_is_connected() {
        let node = |connected: bool, at: i64| {
            let at = ("last_report_wall_ns".to_string(), json!(at));
            let mut node = json!({"node": "a \"b\"", "connected": connected});
            node.as_object_mut().unwrap().extend([at]);
            node
        };
        let lists = [json!({"nodes": [node(false, 9)]}), json!({"nodes": [node(true, 2)]})];
        assert_eq!(merged(&NODES, &lists)["nodes"], json!([node(true, 2)]));
        let older = json!({"nodes": [node(true, 1)]});
        assert_eq!(merged(&NODES, &[older, lists[1].clone()])["nodes"], json!([node(true, 2)]));
    }

    #[test]
    fn a_shard_with_many_incidents_hides_none_of_another() {
        let incident = |shard: u16, at: usize| json!({"id": shard, "opened_wall_ns": at});
        let of = |shard, times: std::ops::Range<usize>| {
            let newest: Vec<Value> = times.rev().map(|at| incident(shard, at)).collect();
            json!({"incidents": newest})
        };
        let newer = 2 * ROWS_LISTED_MAX..3 * ROWS_LISTED_MAX;
        let all = merged(&INCIDENTS, &[of(0, newer), of(1, 0..30)]);
        let rows = all["incidents"].as_array().unwrap();
        let times: Vec<u64> =
            rows.iter().map(|row| row["opened_wall_ns"].as_u64().unwrap()).collect();
        assert_eq!(rows.len(), ROWS_LISTED_MAX);
        assert!(times.is_sorted_by(|a, b| a > b), "newest first");
        let of_second = rows.iter().filter(|row| row["id"] == 1).count();
        assert_eq!((of_second, times[0]), (30, 3 * ROWS_LISTED_MAX as u64 - 1));
    }

    #[test]
    fn many_captures_together_are_without_their_parts() {
        let capture = |at: usize| {
            json!({"id": at, "requested_wall_ns": at, "ranks": PARTS_LISTED_MAX / 2,
                "parts": [{"rank": 0}], "missing": [{"rank": 1}], "parts_left_out": false})
        };
        let lists =
            [json!({"captures": [capture(4), capture(1)]}), json!({"captures": [capture(3)]})];
        let all = merged(&CAPTURES, &lists);
        assert_eq!(texts(&all["captures"], "id"), ["4", "3", "1"]);
        assert_eq!(texts(&all["captures"], "parts_left_out"), ["false", "false", "true"]);
        assert_eq!((&all["captures"][2]["parts"], &all["captures"][0]), (&json!([]), &capture(4)));
        // An owner may answer any number.
        let many = json!({"requested_wall_ns": 5, "ranks": usize::MAX});
        let all = merged(&CAPTURES, &[json!({"captures": [many, capture(4), capture(3)]})]);
        assert_eq!(texts(&all["captures"], "parts_left_out"), ["true", "true", "true"]);
    }

    #[test]
    fn what_is_no_list_is_seen() {
        for other in
            ["", "[]", "{}", "null", r#"{"jobs":{}}"#, r#"{"jobs":[{"job":7}]}"#, "{\"jobs\":["]
        {
            assert!(JOBS.check(Bytes::from(other)).is_err(), "{other}");
        }
        assert!(JOBS.check(Bytes::from_static(b"{\"jobs\":[{}]}")).is_ok());
    }

    proptest! {
        /// Whatever the shards hold, the merged list is in order and within its bound, and what is
        /// newest of all is in it.
        #[test]
        fn merged_lists_are_ordered_and_bounded(
            lists in prop::collection::vec(prop::collection::vec(0_i64..5000, 0..300), 1..6),
        ) {
            let list = List { rows: "actions", order: Order::Newest, rows_max: 100 };
            let row = |at: &i64| json!({"wall_ns": at});
            let answers: Vec<Value> = lists.iter().map(|times| {
                let mut times = times.clone();
                times.sort_by_key(|at| Reverse(*at));
                json!({"actions": times.iter().map(row).collect::<Vec<_>>()})
            }).collect();
            let all = merged(&list, &answers);
            let times: Vec<i64> = all["actions"].as_array().unwrap().iter()
                .map(|row| row["wall_ns"].as_i64().unwrap()).collect();
            let count: usize = lists.iter().map(Vec::len).sum();
            prop_assert_eq!(times.len(), count.min(100));
            prop_assert!(times.is_sorted_by(|a, b| a >= b));
            prop_assert_eq!(times.first(), lists.iter().flatten().max());
        }
    }
}
