//! Real handshakes in memory: who is let in, before and after files are replaced.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memtape_tls::TlsError;
use memtape_tls::authority::{Party, issue, make};
use memtape_tls::certificate::named;
use memtape_tls::client::ClientTls;
use memtape_tls::folder::Material;
use memtape_tls::server::ServerTls;
use memtape_tls::unreachable::Unreachable;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::io::duplex;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const DAYS: u64 = 30;

/// An authority, a coordinator and the agent of node n1.
fn pki() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("authority");
    make(&authority).unwrap();
    let (server, client) = (folder.path().join("server"), folder.path().join("client"));
    let hosts = vec!["coordinator.example".to_string(), "10.0.0.1".to_string()];
    issue(&authority, &server, &Party::Coordinator(hosts), DAYS).unwrap();
    issue(&authority, &client, &Party::Agent("n1".to_string()), DAYS).unwrap();
    (folder, server, client)
}

/// The client's certificates as the server saw them; none where the handshake failed.
async fn shake(
    server: &ServerTls,
    client: &ClientTls,
    name: &str,
) -> Option<Vec<CertificateDer<'static>>> {
    connect(server, client.config(), name).await
}

async fn connect(
    server: &ServerTls,
    client: ClientConfig,
    name: &str,
) -> Option<Vec<CertificateDer<'static>>> {
    let (near, far) = duplex(64 << 10);
    let connector = TlsConnector::from(Arc::new(client));
    let name = ServerName::try_from(name.to_string()).unwrap();
    let (accepted, connected) = tokio::join!(
        async {
            let mut stream = TlsAcceptor::from(server.config()).accept(far).await.ok()?;
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"in").await.ok()?;
            Some(stream)
        },
        async {
            let mut stream = connector.connect(name, near).await.ok()?;
            // Of TLS 1.3 a client hears only now whether its certificate was taken.
            let mut said = [0; 2];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut said).await.ok()
        }
    );
    connected?;
    let chain = accepted?.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    Some(chain.into_iter().map(CertificateDer::into_owned).collect())
}

/// Puts the files of one folder into the place of another's.
fn replace(from: &Path, to: &Path) {
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        std::fs::rename(from.join(name), to.join(name)).unwrap();
    }
}

#[tokio::test]
async fn each_side_knows_the_other_by_its_certificate() {
    let (_folder, server, client) = pki();
    let (server, agent) = (ServerTls::open(&server).unwrap(), ClientTls::open(&client).unwrap());
    assert_eq!(server.hosts(), ["coordinator.example"]);
    for name in ["coordinator.example", "10.0.0.1"] {
        let chain = shake(&server, &agent, name).await.expect(name);
        assert_eq!(named(&chain[0]).names, ["spiffe://memtape/agent/n1"]);
        assert!(server.trusts(&chain));
    }
    assert!(shake(&server, &agent, "other.example").await.is_none(), "the name is another");
    // A client without a certificate is let in, and has no name.
    std::fs::remove_file(client.join("tls.crt")).unwrap();
    std::fs::remove_file(client.join("tls.key")).unwrap();
    let unproven = ClientTls::open(&client).unwrap();
    assert_eq!(shake(&server, &unproven, "10.0.0.1").await, Some(Vec::new()));
    assert!(!server.trusts(&[]));
}

#[tokio::test]
async fn certificates_of_others_are_refused() {
    let (folder, server, client) = pki();
    let tls = ServerTls::open(&server).unwrap();
    // Of another authority, of a server, and one that has expired.
    let (_other, _, forged) = pki();
    std::fs::copy(client.join("ca.crt"), forged.join("ca.crt")).unwrap();
    let expired = folder.path().join("expired");
    let agent = Party::Agent("n1".to_string());
    issue(&folder.path().join("authority"), &expired, &agent, 0).unwrap();
    // Times in certificates are whole seconds.
    std::thread::sleep(std::time::Duration::from_secs(2));
    for folder in [&forged, &server, &expired] {
        let client = ClientTls::open(folder).unwrap();
        let ended = client.invalid().map(|ended| ended.to_string());
        assert_eq!(ended.is_some(), *folder == expired, "{ended:?}");
        assert_eq!(shake(&tls, &client, "10.0.0.1").await, None, "{}", folder.display());
        let chain = Material::read(folder).unwrap().chain;
        assert!(!tls.trusts(&chain), "{}", folder.display());
    }
}

#[tokio::test]
async fn a_replaced_certificate_counts_from_the_next_handshake_on() {
    let (folder, server, client) = pki();
    let (tls, agent) = (ServerTls::open(&server).unwrap(), ClientTls::open(&client).unwrap());
    let chain = shake(&tls, &agent, "10.0.0.1").await.unwrap();
    assert!(!tls.poll().unwrap(), "nothing was replaced");
    // A renewed certificate of the same authority.
    let renewed = folder.path().join("renewed");
    let party = Party::Agent("n1".to_string());
    issue(&folder.path().join("authority"), &renewed, &party, DAYS + 1).unwrap();
    replace(&renewed, &client);
    let before = agent.ends_unix();
    assert!(agent.poll().unwrap() && agent.ends_unix() > before);
    let newer = shake(&tls, &agent, "10.0.0.1").await.unwrap();
    assert!(newer != chain && tls.trusts(&newer) && tls.trusts(&chain));
    // Half of a new pair changes nothing; the whole of it does.
    let (_other, new_server, new_client) = pki();
    std::fs::copy(new_server.join("tls.crt"), server.join("tls.crt")).unwrap();
    assert!(matches!(tls.poll(), Err(TlsError::Unfit(..))));
    assert!(shake(&tls, &agent, "10.0.0.1").await.is_some());
    replace(&new_server, &server);
    assert!(tls.poll().unwrap() && !tls.trusts(&newer));
    assert!(shake(&tls, &agent, "10.0.0.1").await.is_none());
    assert!(shake(&tls, &ClientTls::open(&new_client).unwrap(), "10.0.0.1").await.is_some());
}

/// Lists the certificate of a folder as revoked, for all who read one of the other folders.
fn revoke(authority: &Path, revoked: &Path, readers: &[&Path]) {
    let text = |name: &str| std::fs::read_to_string(authority.join(name)).unwrap();
    let key = rcgen::KeyPair::from_pem(&text("ca.key")).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&text("ca.crt"), key).unwrap();
    let certificate = Material::read(revoked).unwrap().chain.remove(0);
    let (_, certificate) = x509_parser::parse_x509_certificate(&certificate).unwrap();
    let now = std::time::SystemTime::now();
    let list = rcgen::CertificateRevocationListParams {
        this_update: now.into(),
        next_update: (now + std::time::Duration::from_secs(86_400)).into(),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs: vec![rcgen::RevokedCertParams {
            serial_number: rcgen::SerialNumber::from_slice(certificate.raw_serial()),
            revocation_time: now.into(),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&issuer).unwrap().pem().unwrap();
    readers.iter().for_each(|reader| std::fs::write(reader.join("ca.crl"), &list).unwrap());
}

#[tokio::test]
async fn a_service_whose_certificate_is_revoked_is_not_trusted() {
    let (folder, server, client) = pki();
    let (authority, other) = (folder.path().join("authority"), folder.path().join("other"));
    let hosts = Party::Coordinator(vec!["10.0.0.1".to_string()]);
    issue(&authority, &other, &hosts, DAYS).unwrap();
    let (tls, agent) = (ServerTls::open(&other).unwrap(), ClientTls::open(&client).unwrap());
    let coordinator = ServerTls::open(&server).unwrap();
    let is_trusted = async || {
        let asking = connect(&tls, coordinator.client(), "10.0.0.1").await.is_some();
        (asking, shake(&tls, &agent, "10.0.0.1").await.is_some())
    };
    assert_eq!(is_trusted().await, (true, true));
    revoke(&authority, &other, &[&server, &client]);
    assert!(coordinator.poll().unwrap() && agent.poll().unwrap());
    assert_eq!(is_trusted().await, (false, false));
    // The list has no other one.
    assert!(shake(&coordinator, &agent, "10.0.0.1").await.is_some());
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (folder, server, _) = pki();
    let key = server.join("tls.key");
    let check = |expected: &str| {
        let error = ServerTls::open(&server).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    };
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(&key, mode(0o644)).unwrap();
    check("chmod 600");
    std::fs::set_permissions(&key, mode(0o640)).unwrap();
    assert!(ServerTls::open(&server).is_ok(), "a group may read it, as in a mounted secret");
    std::fs::write(&key, "nonsense").unwrap();
    check("holds no private key");
    std::fs::write(server.join("ca.crt"), "nonsense").unwrap();
    check("holds no certificate");
    std::fs::remove_file(server.join("ca.crt")).unwrap();
    check("memtape tls init");
    let error = make(&folder.path().join("authority")).unwrap_err().to_string();
    assert!(error.contains("ca.key"), "nothing is replaced: {error}");
}

#[test]
fn names_of_spiffe_are_read() {
    let (_folder, server, client) = pki();
    for (from, to) in
        [("tls.crt", "svid.pem"), ("tls.key", "svid_key.pem"), ("ca.crt", "svid_bundle.pem")]
    {
        std::fs::rename(client.join(from), client.join(to)).unwrap();
    }
    let read = Material::read(&client).unwrap();
    assert_eq!(named(&read.chain[0]).names, ["spiffe://memtape/agent/n1"]);
    let of_server = named(&Material::read(&server).unwrap().chain[0]);
    assert_eq!(of_server.names, ["dns:coordinator.example"]);
    assert!(of_server.ends_unix.as_secs() > 1_700_000_000);
    assert!(named(&CertificateDer::from(vec![1, 2, 3])).names.is_empty());
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_yet_is_named_on_both_sides() {
    let (folder, server, client) = pki();
    assert!(ServerTls::open(&server).unwrap().invalid().is_none());
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let key = rcgen::KeyPair::from_pem(&text("authority/ca.key")).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&text("authority/ca.crt"), key).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["10.0.0.1".to_string()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2090, 1, 1);
    params.not_after = rcgen::date_time_ymd(2091, 1, 1);
    let key = rcgen::KeyPair::from_pem(&text("server/tls.key")).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    std::fs::write(server.join("tls.crt"), certificate).unwrap();
    let (tls, agent) = (ServerTls::open(&server).unwrap(), ClientTls::open(&client).unwrap());
    let own = tls.invalid().unwrap().to_string();
    assert!(own.contains("is not valid before 2090-01-01 00:00 UTC"), "{own}");
    let (near, far) = duplex(64 << 10);
    let accepting = tokio::spawn(TlsAcceptor::from(tls.config()).accept(far).into_future());
    let name = ServerName::try_from("10.0.0.1").unwrap();
    let refused = TlsConnector::from(Arc::new(agent.config())).connect(name, near).await;
    let why = Unreachable::of(&refused.unwrap_err()).unwrap();
    assert!(matches!(why, Unreachable::NotYet(_)), "{why:?}");
    let line = why.sentence("https://10.0.0.1:7771");
    assert!(line.contains("7771 is not valid before 2090-01-01 00:00 UTC"), "{line}");
    assert!(accepting.await.unwrap().is_err());
}

/// A certificate of the same authority, made with rcgen; `below` makes it one of an authority that
/// the first has signed.
fn user(authority: &Path, names: usize, below: bool) -> Vec<CertificateDer<'static>> {
    let text = |name: &str| std::fs::read_to_string(authority.join(name)).unwrap();
    let key = rcgen::KeyPair::from_pem(&text("ca.key")).unwrap();
    let mut issuer = rcgen::Issuer::from_ca_cert_pem(&text("ca.crt"), key).unwrap();
    let mut chain = Vec::new();
    if below {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "below");
        chain.push(params.signed_by(&key, &issuer).unwrap().der().clone());
        issuer = rcgen::Issuer::new(params, key);
    }
    let name = |number| format!("spiffe://memtape/user/{number}").try_into().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.subject_alt_names = (0..names).map(|of| rcgen::SanType::URI(name(of))).collect();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    chain.insert(0, params.signed_by(&key, &issuer).unwrap().der().clone());
    chain
}

#[test]
fn authorities_below_the_first_and_too_many_names_are_refused() {
    let (folder, server, _) = pki();
    let (tls, authority) = (ServerTls::open(&server).unwrap(), folder.path().join("authority"));
    for (names, below, is_trusted, seen) in
        [(1, false, true, 1), (64, false, true, 64), (65, false, true, 0), (1, true, false, 1)]
    {
        let chain = user(&authority, names, below);
        assert_eq!(tls.trusts(&chain), is_trusted, "{names} names, below: {below}");
        assert_eq!(named(&chain[0]).names.len(), seen);
    }
}
