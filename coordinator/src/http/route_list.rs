//! A list of routes of the API, each with one sentence: nothing can be served below `/api/v1`
//! without being listed. Which routes there are, each `…_routes.rs` file says.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodRouter, get, post};
use memtape_proto::api::IndexedRoute;

use crate::http::request::Api;

/// Prefix of the API's paths.
const BASE: &str = "/api/v1";

/// Routes below `/api/v1`, with their descriptions.
#[derive(Default)]
pub(crate) struct Routes {
    router: Router<Api>,
    listed: Vec<IndexedRoute>,
}

impl Routes {
    /// Adds a GET below `/api/v1`, with one sentence about it.
    pub(crate) fn get<T: 'static>(
        self,
        path: &str,
        about: &str,
        handler: impl Handler<T, Api>,
    ) -> Self {
        self.add("GET", path, about, get(handler))
    }

    /// Adds a POST.
    pub(crate) fn post<T: 'static>(
        self,
        path: &str,
        about: &str,
        handler: impl Handler<T, Api>,
    ) -> Self {
        self.add("POST", path, about, post(handler))
    }

    fn add(mut self, method: &str, path: &str, about: &str, route: MethodRouter<Api>) -> Self {
        let path = format!("{BASE}{path}");
        let router = self.router.route(&path, route);
        let (method, about) = (method.to_string(), about.to_string());
        self.listed.push(IndexedRoute { method, path, about });
        Self { router, ..self }
    }

    /// The routes added until now.
    pub(crate) fn listed(&self) -> Vec<IndexedRoute> {
        self.listed.clone()
    }

    /// The routes as the router takes them.
    pub(crate) fn into_router(self) -> Router<Api> {
        self.router
    }
}
