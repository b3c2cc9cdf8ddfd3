//! Credentials of a program for the coordinator: a certificate, a token, or none.

use std::net::IpAddr;

use anyhow::Context;
use memtape_tls::client::ClientTls;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use crate::args::Mistakes;
use crate::globals::Globals;
use crate::secret_file;

/// The variable that holds a token.
const TOKEN: &str = "MEMTAPE_TOKEN";

/// Credentials that a program shows: certificate and token.
#[derive(Default)]
pub(crate) struct Credentials {
    pub(super) tls: Option<ClientTls>,
    token: Option<String>,
}

impl Credentials {
    /// Reads the credentials that the options and the environment name.
    /// Fails when a file cannot be read.
    pub(crate) fn read(globals: &Globals) -> anyhow::Result<Self> {
        let tls = globals.tls_dir.as_deref().map(ClientTls::open).transpose()?;
        let of_file = globals.token_file.as_deref().map(secret_file::read).transpose()?;
        if let Some(warning) = globals.token_file.as_deref().and_then(secret_file::warning) {
            eprintln!("memtape: warning: {warning}");
        }
        let of_variable = || std::env::var(TOKEN).ok().map(|text| text.trim().to_string());
        let token = of_file.or_else(of_variable).filter(|token| !token.is_empty());
        Ok(Self { tls, token })
    }

    /// A client of HTTP that shows them to the server of this URL.
    /// Fails where others could read the token on its way.
    pub(crate) fn apply(
        &self,
        base: &str,
        builder: reqwest::ClientBuilder,
    ) -> anyhow::Result<reqwest::ClientBuilder> {
        let builder = match &self.tls {
            Some(tls) => builder.tls_backend_preconfigured(tls.config()),
            None => builder,
        };
        let Some(token) = &self.token else { return Ok(builder) };
        if !base.starts_with("https://") && !is_here(base) {
            let line = format!(
                "the token would be sent to {base} in the clear: write https:// and name the \
                 coordinator's ca.crt with --tls-dir"
            );
            return Err(Mistakes::one(line).into());
        }
        let value = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut value = value.context("the token has characters that none has")?;
        value.set_sensitive(true);
        Ok(builder.default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)])))
    }
}

/// Is the server of this URL on this machine?
fn is_here(base: &str) -> bool {
    let url = reqwest::Url::parse(base).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str).unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_sent_in_the_clear() {
        let credentials = Credentials { tls: None, token: Some("mtk_1_2".to_string()) };
        let apply = |base| credentials.apply(base, reqwest::Client::builder());
        for base in
            ["https://node7:7771", "http://127.0.0.1:7771", "http://[::1]:1", "http://localhost"]
        {
            assert!(apply(base).is_ok(), "{base}");
        }
        for base in ["http://node7:7771", "http://10.0.0.1:7771", "http://localhost.evil"] {
            assert!(apply(base).is_err_and(|error| error.is::<Mistakes>()), "{base}");
        }
        let none = Credentials::default();
        assert!(none.apply("http://node7:7771", reqwest::Client::builder()).is_ok());
    }
}
