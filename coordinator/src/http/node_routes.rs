//! `/nodes`: the nodes whose agents have connected.

use axum::response::Json;
use memtape_proto::api::{Node, Nodes};

use crate::http::asking::Asking;
use crate::http::request::Answer;
use crate::http::route_list::Routes;
use crate::state::jobs::attempt;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/nodes", "All nodes whose agents have connected.", nodes)
}

async fn nodes(asking: Asking) -> Answer<Nodes> {
    let nodes = asking.ask(|view| view.nodes().map(|(name, of)| node(name, of)).collect());
    Ok(Json(Nodes { nodes: nodes.await? }))
}

fn node(name: &str, node: &attempt::Node) -> Node {
    Node {
        node: name.to_string(),
        connected: node.is_connected,
        version: node.version.clone(),
        last_report_wall_ns: node.last_report_wall_ns,
        gpus: node.gpus.clone(),
        host: node.host.clone(),
    }
}
