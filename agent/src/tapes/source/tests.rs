//! Tests of folders: what is found in them, whose it is, and what is deleted.

use super::*;

#[test]
fn what_was_never_written_of_a_file_is_known() {
    const WORDS: usize = 1 << 24;
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.tape");
    let file = File::create(&path).expect("a file");
    file.set_len(WORDS as u64 * 8).expect("a length");
    file.write_all_at(&[1; 8], 64 << 20).expect("a word");
    let tape = TapeFolders::new(Vec::new(), false).open(&path).expect("a file");
    let written = tape.written(0..WORDS);
    // A file system without holes says that all was written.
    assert!(written == (0..WORDS) || (1 << 23..1 << 23 | 1 << 18).contains(&written.start));
    assert!(written.contains(&(1 << 23)), "{written:?}");
    let before = tape.written(0..1 << 22);
    assert!(before.is_empty() || before == (0..1 << 22), "{before:?}");
    assert!(tape.written(WORDS - 8..WORDS).len() <= 8);
}

#[test]
fn a_word_is_written_onto_no_other_file_than_the_one_that_was_opened() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let make = |name: &str| std::fs::write(at(name), [0; 64]).expect("a file");
    let read = |name: &str| std::fs::read(at(name)).expect("a file");
    make("a.tape");
    let tape = TapeFolders::new(Vec::new(), false).open(&at("a.tape")).expect("a file");
    tape.write(&at("a.tape"), 3, 0x0102).expect("a word");
    assert_eq!(read("a.tape")[24..32], [2, 1, 0, 0, 0, 0, 0, 0]);
    // Behind the end, through a link, in another file of the name, and in none.
    assert!(tape.write(&at("a.tape"), 8, 1).is_err());
    assert_eq!(read("a.tape").len(), 64);
    std::fs::rename(at("a.tape"), at("moved.tape")).expect("moved");
    std::os::unix::fs::symlink(at("moved.tape"), at("a.tape")).expect("a link");
    assert!(tape.write(&at("a.tape"), 0, 9).is_err());
    std::fs::remove_file(at("a.tape")).expect("removed");
    assert!(tape.write(&at("a.tape"), 0, 9).is_err());
    make("a.tape");
    assert!(tape.write(&at("a.tape"), 0, 9).is_err());
    assert_eq!((read("a.tape"), read("moved.tape")[0]), (vec![0; 64], 0));
}

/// A folder with folders of two pods, each with a tape.
fn pods() -> (tempfile::TempDir, [PathBuf; 2]) {
    let dir = tempfile::tempdir().expect("a folder");
    let pods = ["team-a_x-0_1-a", "team-b_x-0_1-b"].map(|name| dir.path().join(name));
    for pod in &pods {
        std::fs::create_dir(pod).expect("a folder");
        std::fs::write(pod.join("a.tape"), [0; 64]).expect("a file");
    }
    (dir, pods)
}

/// Names of files with the namespaces that they belong to.
fn listed(folders: &mut TapeFolders) -> Vec<(String, String)> {
    let of = |entry: Entry| {
        let name = entry.path.file_name().expect("a name").to_string_lossy().into_owned();
        (entry.pod.map(|pod| pod.namespace.clone()).unwrap_or_default(), name)
    };
    folders.list().entries.into_iter().map(of).collect()
}

#[test]
fn a_tape_belongs_to_the_pod_whose_folder_it_lies_in() {
    let (dir, [one, _]) = pods();
    std::fs::write(dir.path().join("beside.tape"), [0; 64]).expect("a file");
    // What a pod makes in its own folder is no folder of another pod.
    let forged = one.join("team-b_x-0_1-b.tape");
    std::fs::create_dir(&forged).expect("a folder");
    std::fs::write(forged.join("forged.tape"), [0; 64]).expect("a file");
    std::os::unix::fs::symlink(dir.path(), dir.path().join("team-c_x_1")).expect("a link");
    let mut folders = TapeFolders::new(vec![dir.path().to_path_buf()], true);
    (0..2).for_each(|_| _ = folders.list());
    let mut found = listed(&mut folders);
    found.sort();
    let expected = [
        ("", "beside.tape"),
        ("team-a", "a.tape"),
        ("team-a", "team-b_x-0_1-b.tape"),
        ("team-b", "a.tape"),
    ];
    assert_eq!(found, expected.map(|(pod, name)| (pod.to_string(), name.to_string())));
    assert!(folders.open(&one.join("a.tape")).is_ok());
    let beside = folders.open(&dir.path().join("beside.tape"));
    assert!(matches!(beside, Err(NotATape::NoPod)), "{beside:?}");
    let mut folders = TapeFolders::new(vec![dir.path().to_path_buf()], false);
    (0..2).for_each(|_| _ = folders.list());
    assert_eq!(listed(&mut folders).len(), 1, "without pods their folders are not searched");
}

#[test]
fn a_flood_in_the_folder_of_one_pod_delays_no_other() {
    let (dir, [flooded, _]) = pods();
    for file in 0..FOLDER_ENTRIES_MAX {
        File::create(flooded.join(file.to_string())).expect("a file");
    }
    let mut folders = TapeFolders::new(vec![dir.path().to_path_buf()], true);
    folders.list();
    for scan in 0..4 {
        let found = listed(&mut folders);
        assert!(found.iter().any(|(pod, _)| pod == "team-b"), "scan {scan}: {found:?}");
    }
}

#[test]
fn what_is_no_regular_file_is_not_opened() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.tape");
    // To open a socket fails with another error.
    let _socket = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let opened = TapeFolders::new(Vec::new(), false).open(&path);
    assert!(matches!(opened, Err(NotATape::NoFile)), "{opened:?}");
}

#[test]
fn folders_of_pods_are_deleted_when_they_are_empty_old_and_not_used() {
    let (dir, [old, full]) = pods();
    let young = dir.path().join("team-b_x-1_1-c");
    std::fs::remove_file(old.join("a.tape")).expect("removed");
    std::fs::create_dir(&young).expect("a folder");
    let age = |folder: &Path, age: Duration| {
        let time = std::time::SystemTime::now() - age;
        File::open(folder).and_then(|it| it.set_modified(time)).expect("a time");
    };
    let delete = |path: &Path, used: Option<&[&str]>| {
        let used = used.map(|used| used.iter().map(ToString::to_string).collect());
        let pod = Pod::of_folder(path.file_name().and_then(OsStr::to_str).expect("a name"));
        let pod = pod.map(|pod| (Arc::new(pod), 1));
        let path = path.to_path_buf();
        let mut folder = TapeFolder { path, pod, ..TapeFolder::default() };
        folder.read(16, &mut Vec::new(), &mut Vec::new()).expect("a folder");
        folder.delete_old(used.as_ref());
        folder.path.exists()
    };
    assert!(delete(&old, Some(&[])), "it is young");
    age(&old, EMPTY_FOLDER_AGE_MAX);
    assert!(delete(&old, None), "where no process is seen, a day is not enough");
    assert!(delete(&old, Some(&["1-c", "1-a"])), "its pod has a process");
    // The pod can set the time of its folder: a look at all processes has the agent's own.
    let mut folders = TapeFolders::new(vec![dir.path().to_path_buf()], true);
    (0..3).for_each(|_| _ = folders.list());
    assert!(old.exists());
    folders.deleted_at = Instant::now().checked_sub(DELETION_INTERVAL).expect("an hour ago");
    let is_seen = workload::sees_processes("/".as_ref());
    folders.list();
    assert_eq!(old.exists(), !is_seen, "once an hour");
    assert!(!old.exists() || !delete(&old, Some(&["1-b"])));
    [&full, &young].iter().for_each(|folder| age(folder, UNSEEN_FOLDER_AGE_MAX));
    assert!(delete(&full, Some(&[])), "it has a tape");
    assert!(!delete(&young, None));
}
