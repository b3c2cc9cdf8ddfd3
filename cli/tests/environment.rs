//! What variables of the environment, and certificates that they name, do to commands.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use memtape_tls::authority::{Party, issue, make};
use memtape_tls::server::ServerTls;

#[test]
fn a_training_starts_with_an_empty_variable_and_whatever_its_total_steps_are() {
    let (memtape, folder) = (env!("CARGO_BIN_EXE_memtape"), tempfile::tempdir().expect("a folder"));
    for (name, value) in [
        ("MEMTAPE_TOTAL_STEPS", ""),
        ("MEMTAPE_TOTAL_STEPS", "0"),
        ("MEMTAPE_TOTAL_STEPS", " 5000"),
        ("MEMTAPE_TOTAL_STEPS", "many"),
        ("MEMTAPE_ACTIONS", ""),
        ("MEMTAPE_TLS_DIR", ""),
        ("MEMTAPE_TOKEN_FILE", ""),
    ] {
        let mut command = Command::new(memtape);
        command.arg("run").arg("--dir").arg(folder.path());
        command.args(["--", "sh", "-c", &format!("echo \"value:${name}\"")]);
        // Any file: the loader goes on without it.
        command.env("MEMTAPE_LIBRARY", memtape).env(name, value);
        let output = command.output().expect("memtape runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("value:{value}\n"), "{name} {output:?}");
    }
}

#[test]
fn a_refused_certificate_that_has_ended_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, own) = (folder.path().join("authority"), folder.path().join("admin"));
    make(&authority).expect("an authority");
    issue(&authority, &own, &Party::User("admin".to_string()), 0).expect("a certificate");
    // A server that answers with the alert of TLS about a certificate that has expired.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a connection");
        let _ = connection.read(&mut [0; 4096]);
        let _ = connection.write_all(b"\x15\x03\x03\0\x02\x02\x2d");
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_memtape"));
    command.arg("jobs").env("MEMTAPE_TLS_DIR", &own).env("MEMTAPE_COORDINATOR", address);
    let output = command.output().expect("memtape runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let begin = format!("the certificate in {} ended on 2", own.display());
    assert!(said.contains(&begin) && said.contains("memtape tls issue"), "{said}");
}

#[test]
fn a_coordinator_whose_certificate_has_ended_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, own) = (folder.path().join("authority"), folder.path().join("admin"));
    make(&authority).expect("an authority");
    issue(&authority, &own, &Party::User("admin".to_string()), 1).expect("a certificate");
    let (service, hosts) = (folder.path().join("coordinator"), vec!["127.0.0.1".to_string()]);
    issue(&authority, &service, &Party::Coordinator(hosts), 0).expect("a certificate");
    // It is valid in the second in which it ends.
    let seconds = || UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    let issued = seconds();
    while seconds() <= issued {
        std::thread::sleep(Duration::from_millis(20));
    }
    let config = ServerTls::open(&service).expect("certificates").config();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a connection");
        let mut tls = rustls::ServerConnection::new(config).expect("a handshake");
        while tls.complete_io(&mut connection).is_ok_and(|moved| moved != (0, 0)) {}
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_memtape"));
    command.arg("jobs").env("MEMTAPE_TLS_DIR", &own).env("MEMTAPE_COORDINATOR", &address);
    let output = command.output().expect("memtape runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let begin = format!("the certificate of the coordinator at https://{address} ended on 2");
    assert!(said.contains(&begin) && said.contains("--tls-dir"), "{said}");
}
