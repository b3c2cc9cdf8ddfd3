//! `/nodes`: the nodes whose agents have connected; and `/cluster`: the shards of the jobs.

use axum::response::Json;
use memtape_proto::api::{Cluster, Node, Nodes, Shard};

use crate::http::asking::Asking;
use crate::http::request::Answer;
use crate::http::route_list::Routes;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/nodes", "All nodes whose agents have connected.", nodes).get(
        "/cluster",
        "The shards of the cluster, and the coordinators that own them.",
        cluster,
    )
}

async fn nodes(asking: Asking) -> Answer<Nodes> {
    let nodes = asking.ask(|view| {
        let nodes = view.nodes().map(|(name, node, gpus, host)| Node {
            node: name.clone(),
            connected: node.is_connected,
            version: node.version.clone(),
            last_report_wall_ns: node.last_report_wall_ns,
            gpus,
            host,
        });
        nodes.collect()
    });
    Ok(Json(Nodes { nodes: nodes.await?, ..Nodes::default() }))
}

/// The shard of this coordinator, and those who wait. The owners of the other shards are asked as
/// for every list.
async fn cluster(asking: Asking) -> Answer<Cluster> {
    let members = &asking.api.members;
    let own = members.standing().with_own(Shard {
        shard: members.own(),
        owner: members.url(members.own()),
        version: env!("CARGO_PKG_VERSION").to_string(),
        owned_since_wall_ns: asking.api.owned_since_wall_ns,
        lag_ns: asking.api.store.undurable_age_ns(),
        ..Shard::default()
    });
    let (waiting, waiting_left_out, waiting_unknown) = members.standing().waiting();
    let (shards, missing_shards) = (vec![own], Vec::new());
    Ok(Json(Cluster { shards, missing_shards, waiting, waiting_left_out, waiting_unknown }))
}
