//! What a route is about, by its path: the own shard, all shards, or one thing in one of them.

use memtape_core::identity::ids::shard_of_id;
use memtape_core::identity::owner::job_name;
use memtape_core::placement::shard_of;

use crate::http::gather::lists::{ACTIONS, CAPTURES, INCIDENTS, JOBS, List, NODES, SHARDS};

/// What a route is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reach {
    /// The coordinator itself, or its own shard.
    Own,
    /// A list of all shards.
    List(&'static List),
    /// One thing, which is in one shard.
    One(Named),
}

/// How the first part of the path that varies names a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// A job, by its name or id.
    Job,
    /// An incident or a capture, by its id.
    Id,
    /// Not at all: it is in the first shard.
    FirstShard,
    /// By nothing in the path: the query has the number of its shard.
    Query,
}

impl Reach {
    /// What the route with this path is about.
    pub(super) fn of(route: &str) -> Self {
        match route {
            "/api/v1/jobs" => Self::List(&JOBS),
            "/api/v1/incidents" => Self::List(&INCIDENTS),
            "/api/v1/captures" => Self::List(&CAPTURES),
            "/api/v1/actions" => Self::List(&ACTIONS),
            "/api/v1/nodes" => Self::List(&NODES),
            "/api/v1/cluster" => Self::List(&SHARDS),
            "/api/v1/tokens" | "/api/v1/tokens/own" | "/api/v1/tokens/{id}/revoke" => {
                Self::One(Named::FirstShard)
            }
            "/api/v1/store/backup" => Self::One(Named::Query),
            route if route.starts_with("/api/v1/jobs/{job}/") => Self::One(Named::Job),
            route if route.starts_with("/api/v1/incidents/{id}") => Self::One(Named::Id),
            route if route.starts_with("/api/v1/captures/{id}") => Self::One(Named::Id),
            _ => Self::Own,
        }
    }
}

impl Named {
    /// The shard of a thing; none where its name does not tell it.
    pub(super) fn shard(self, name: &str, shards: u16) -> Option<u16> {
        match self {
            Self::Job => Some(shard_of(job_name(name), shards)),
            Self::Id => shard_of_id(name, shards),
            Self::FirstShard => Some(0),
            Self::Query => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Routes about the coordinator that is asked.
    const OWN: [&str; 7] = [
        "/api/v1",
        "/api/v1/audit",
        "/api/v1/changes",
        "/api/v1/openapi.json",
        "/api/v1/session",
        "/api/v1/session/end",
        "/api/v1/whoami",
    ];

    #[test]
    fn every_route_is_of_one_shard_of_all_or_own() {
        let document: Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let routes = document["paths"].as_object().unwrap().keys();
        let own: Vec<&str> =
            routes.map(String::as_str).filter(|route| Reach::of(route) == Reach::Own).collect();
        assert_eq!(own, OWN, "a new route needs a line in Reach::of, or here");
    }

    #[test]
    fn names_and_ids_lead_to_their_shard() {
        for job in ["train", "train@1001", "train@0.team-b", "train@0.~node"] {
            assert_eq!(Named::Job.shard(job, 8), Some(shard_of("train", 8)), "{job}");
        }
        assert_eq!(Named::Job.shard("a@b@7", 8), Some(shard_of("a@b", 8)));
        assert_eq!(Named::Id.shard("inc-0000c1s", 4), shard_of_id("cap-0000c1s", 4));
        assert_eq!(Named::Id.shard("cap-0000c1s-0123456789-alone", 4), None);
        assert_eq!(Named::FirstShard.shard("", 4), Some(0));
    }
}
