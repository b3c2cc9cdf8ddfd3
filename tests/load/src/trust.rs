//! Certificates of a whole cluster and a file of roles, in a folder that goes with it.
//!
//! Each agent has a certificate of its own node. Users see the jobs of some owners, so that tenancy
//! is at work; one administers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memtape_tls::authority::{Party, issue, make};
use memtape_tls::client::ClientTls;
use rustls::ClientConfig;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Who reads the figures of the coordinator.
const ADMIN: &str = "admin";

/// Days that a certificate is valid.
const DAYS: u64 = 30;

/// The trust of one cluster.
#[derive(Debug)]
pub(crate) struct Trust {
    folder: tempfile::TempDir,
}

impl Trust {
    /// An authority, the coordinator's certificate and the roles. The owners of all jobs have the
    /// user ids from 1,000 on, one for each job; these users see the first one's.
    pub(crate) fn new(viewers: &[String]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        make(&folder.path().join("authority"))?;
        let trust = Self { folder };
        let viewers: Vec<String> =
            viewers.iter().map(|name| format!("\"spiffe://memtape/user/{name}\"")).collect();
        let roles = format!(
            "audit = \"required\"\n\
             [[grant]]\nrole = \"agent\"\nnames = [\"spiffe://memtape/agent/{{node}}\"]\n\
             [[grant]]\nrole = \"admin\"\nnames = [\"spiffe://memtape/user/{ADMIN}\"]\n\
             [[grant]]\nrole = \"viewer\"\nnames = [{}]\nuids = [1000]\n",
            match viewers.is_empty() {
                true => "\"none\"".to_string(),
                false => viewers.join(", "),
            }
        );
        std::fs::write(trust.path("access.toml"), roles)?;
        Ok(trust)
    }

    /// Options of `memtape coordinator`.
    pub(crate) fn arguments(&self) -> anyhow::Result<Vec<String>> {
        let tls = self.folder_of(&Party::Coordinator(vec!["127.0.0.1".to_string()]))?;
        let text = |path: PathBuf| path.display().to_string();
        let roles = self.path("access.toml");
        Ok(vec!["--tls-dir".to_string(), text(tls), "--access-file".to_string(), text(roles)])
    }

    /// TLS of a client of the API.
    pub(crate) fn user(&self, name: &str) -> anyhow::Result<ClientConfig> {
        let folder = self.folder_of(&Party::User(name.to_string()))?;
        Ok(ClientTls::open(&folder)?.config())
    }

    /// TLS of the user who may ask for everything.
    pub(crate) fn admin(&self) -> anyhow::Result<ClientConfig> {
        self.user(ADMIN)
    }

    /// TLS of a client that has no certificate.
    pub(crate) fn stranger(&self) -> anyhow::Result<ClientConfig> {
        let folder = self.path("stranger");
        if !folder.exists() {
            std::fs::create_dir(&folder)?;
            std::fs::copy(self.path("authority").join("ca.crt"), folder.join("ca.crt"))?;
        }
        Ok(ClientTls::open(&folder)?.config())
    }

    /// TLS of a node's agent, for HTTP/2.
    pub(crate) fn node(&self, node: &str) -> anyhow::Result<ClientConfig> {
        let folder = self.folder_of(&Party::Agent(node.to_string()))?;
        let mut tls = ClientTls::open(&folder)?.config();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(tls)
    }

    /// An endpoint that shows the certificate of a node's agent.
    pub(crate) fn agent(&self, endpoint: Endpoint, node: &str) -> anyhow::Result<Endpoint> {
        let folder = self.folder_of(&Party::Agent(node.to_string()))?;
        let read = |name: &str| std::fs::read(folder.join(name));
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read("ca.crt")?))
            .identity(Identity::from_pem(read("tls.crt")?, read("tls.key")?));
        Ok(endpoint.tls_config(tls)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of a party's certificate, made when it is first asked for.
    fn folder_of(&self, party: &Party) -> anyhow::Result<PathBuf> {
        let folder = self.path(&party.name());
        if !Path::exists(&folder) {
            issue(&self.path("authority"), &folder, party, DAYS)?;
        }
        Ok(folder)
    }
}

/// Certificates where a run has them.
pub(crate) type MaybeTrust = Option<Arc<Trust>>;
