//! A list of routes of the API, each with one sentence: nothing can be served below `/api/v1`
//! without being described. Which routes there are, each `…_routes.rs` file says.

use aide::OperationInput;
use aide::OperationOutput;
use aide::axum::ApiRouter;
use aide::axum::routing::{ApiMethodRouter, get_with, post_with};
use aide::operation::OperationHandler;
use axum::handler::Handler;
use memtape_proto::api::IndexedRoute;

use crate::http::request::Api;

/// Where the API begins.
const BASE: &str = "/api/v1";

/// Routes below `/api/v1`, and what is said of each.
pub(crate) struct Routes {
    router: ApiRouter<Api>,
    listed: Vec<IndexedRoute>,
}

impl Routes {
    /// No routes yet.
    pub(crate) fn new() -> Self {
        Self { router: ApiRouter::new(), listed: Vec::new() }
    }

    /// Adds a GET below `/api/v1`, with one sentence about it.
    pub(crate) fn get<H, I, O, T>(self, path: &str, about: &str, handler: H) -> Self
    where
        H: Handler<T, Api> + OperationHandler<I, O>,
        I: OperationInput,
        O: OperationOutput,
        T: 'static,
    {
        let route = get_with(handler, |operation| operation.summary(about));
        self.add("GET", path, about, route)
    }

    /// Adds a POST.
    pub(crate) fn post<H, I, O, T>(self, path: &str, about: &str, handler: H) -> Self
    where
        H: Handler<T, Api> + OperationHandler<I, O>,
        I: OperationInput,
        O: OperationOutput,
        T: 'static,
    {
        let route = post_with(handler, |operation| operation.summary(about));
        self.add("POST", path, about, route)
    }

    fn add(mut self, method: &str, path: &str, about: &str, route: ApiMethodRouter<Api>) -> Self {
        let path = format!("{BASE}{path}");
        let router = self.router.api_route(&path, route);
        let (method, about) = (method.to_string(), about.to_string());
        self.listed.push(IndexedRoute { method, path, about });
        Self { router, ..self }
    }

    /// What was added until now.
    pub(crate) fn listed(&self) -> Vec<IndexedRoute> {
        self.listed.clone()
    }

    /// The routes as the router takes them.
    pub(crate) fn into_router(self) -> ApiRouter<Api> {
        self.router
    }
}
