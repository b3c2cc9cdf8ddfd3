//! A list of routes of the API, each with one sentence: nothing can be served below `/api/v1`
//! without being described. Which routes there are, each `…_routes.rs` file says.

use aide::OperationInput;
use aide::OperationOutput;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use aide::operation::OperationHandler;
use axum::handler::Handler;

use crate::http::request::Api;

/// Where the API begins.
const BASE: &str = "/api/v1";

/// Routes below `/api/v1`.
pub(crate) struct Routes(ApiRouter<Api>);

impl Routes {
    /// No routes yet.
    pub(crate) fn new() -> Self {
        Self(ApiRouter::new())
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
        Self(self.0.api_route(&format!("{BASE}{path}"), route))
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
        Self(self.0.api_route(&format!("{BASE}{path}"), route))
    }

    /// The routes as the router takes them.
    pub(crate) fn into_router(self) -> ApiRouter<Api> {
        self.0
    }
}
