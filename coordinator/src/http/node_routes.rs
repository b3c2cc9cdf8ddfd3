//! `/nodes`: the nodes whose agents have connected.

use axum::response::Json;
use memtape_proto::api::{Node, Nodes};

use crate::http::asking::Asking;
use crate::http::request::Answer;
use crate::http::route_list::Routes;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/nodes", "All nodes whose agents have connected.", nodes)
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
    Ok(Json(Nodes { nodes: nodes.await? }))
}
