use super::super::tests::{open, serve};
use super::*;
use crate::failpoint::Failpoints;
use fastchangelog_format::config::Options;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a server answers the creation of an object.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Habit {
    /// As S3 does.
    Keeps,
    /// It overwrites, and says 200.
    Ignores,
    /// It writes nothing, and says 200.
    Pretends,
    /// It overwrites, and then refuses.
    RefusesLate,
    /// It refuses with another status.
    Says(Answer),
    /// It refuses all conditional puts.
    Never(Answer),
    /// It refuses all puts.
    TakesNothing(Answer),
    /// It refuses what is not in the folder of one state.
    OnlyBelow(&'static str),
    /// It creates an object, but the answer is lost.
    LosesFirstAnswer,
    /// It deletes nothing.
    NeverDeletes,
}

/// Status and body.
type Answer = (&'static str, &'static str);

const OK: Answer = ("200 OK", "");
const PRECONDITION: Answer = ("412 Precondition Failed", "");
const CONFLICT: Answer = ("409 Conflict", "");
const NOT_FOUND: Answer = ("404 Not Found", "");
const DENIED: Answer = ("403 Forbidden", "");
const BROKEN: Answer = ("500 Internal Server Error", "");
const DELETED: Answer = ("200 OK", "<DeleteResult><Deleted><Key>x</Key></Deleted></DeleteResult>");
const UNKNOWN: Answer = ("501 Not Implemented", "<Error><Code>NotImplemented</Code></Error>");
const UNKNOWN_CONDITION: Answer =
    ("400 Bad Request", "<Error><Code>InvalidArgument</Code><Message>If-None-Match</Message></Error>");
const UNKNOWN_CHECKSUM: Answer =
    ("501 Not Implemented", "<Error><Code>NotImplemented</Code><Header>x-amz-checksum-sha256</Header></Error>");

fn http((status, body): (&str, &str)) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nLast-Modified: Tue, 01 Jan 2030 00:00:00 GMT\r\nETag: \"x\"\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A server of one bucket.
#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, String>,
    /// Method and object of each request.
    requests: Vec<(String, String)>,
    lost: bool,
}

impl Bucket {
    fn answer(&mut self, habit: Habit, request: &str) -> String {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let mut words = head.split([' ', '?']);
        let (method, name) = (words.next().unwrap(), words.next().unwrap().trim_start_matches("/bucket"));
        let name = name.trim_start_matches('/').to_owned();
        self.requests.push((method.to_owned(), name.clone()));
        match (method, habit) {
            ("PUT" | "GET", Habit::OnlyBelow(folder)) if !name.starts_with(folder) => http(DENIED),
            ("PUT", _) => {
                let conditional = head.to_lowercase().contains("\r\nif-none-match: *");
                http(self.put(habit, conditional, name, body))
            }
            ("GET", _) => http(self.objects.get(&name).map_or(NOT_FOUND, |body| ("200 OK", body))),
            ("POST", Habit::NeverDeletes) => http(DENIED),
            // The deletion of the objects in a list.
            ("POST", _) => {
                self.objects.remove(body.split("<Key>").nth(1).unwrap().split("</Key>").next().unwrap());
                http(DELETED)
            }
            _ => http(NOT_FOUND),
        }
    }

    fn put(&mut self, habit: Habit, conditional: bool, name: String, body: &str) -> Answer {
        let taken = conditional && self.objects.contains_key(&name);
        match habit {
            Habit::TakesNothing(answer) => return answer,
            Habit::Never(answer) if conditional => return answer,
            Habit::Says(answer) if taken => return answer,
            Habit::Pretends if taken => return OK,
            Habit::Ignores | Habit::RefusesLate => {}
            _ if taken => return PRECONDITION,
            _ => {}
        }
        self.objects.insert(name, body.to_owned());
        match habit {
            Habit::RefusesLate if taken => PRECONDITION,
            Habit::LosesFirstAnswer if !std::mem::replace(&mut self.lost, true) => BROKEN,
            _ => OK,
        }
    }

    fn count(&self, method: &str) -> usize {
        self.requests.iter().filter(|(of, _)| of == method).count()
    }

    fn names(&self) -> Vec<&str> {
        self.objects.keys().map(String::as_str).collect()
    }
}

/// A bucket, and what opens a root in it.
fn bucket(habit: Habit) -> (Arc<Mutex<Bucket>>, impl Fn() -> Store) {
    let bucket = Arc::new(Mutex::new(Bucket::default()));
    let served = Arc::clone(&bucket);
    let (endpoint, _) = serve(move |request| served.lock().answer(habit, request));
    let root = move || {
        let storage =
            [("endpoint", endpoint.as_str()), ("access_key_id", "a"), ("secret_access_key", "b"), ("region", "x")];
        open("s3://bucket/root", &storage).unwrap()
    };
    (bucket, root)
}

#[tokio::test]
async fn a_store_that_creates_once_is_proved_once_for_its_root() {
    let (bucket, root) = bucket(Habit::Keeps);
    let store = root();
    store.child("a").prove_creation().await.unwrap();
    {
        let found = bucket.lock();
        assert_eq!((found.count("GET"), found.count("PUT"), found.count("POST")), (2, 3, 1), "{:?}", found.requests);
        let [note] = found.names()[..] else { panic!("{:?}", found.names()) };
        assert!(crate::is_creation_note(note.strip_prefix("root/").unwrap()), "{note}");
    }
    let made = || std::mem::take(&mut bucket.lock().requests).len();
    made();
    store.child("b").prove_creation().await.unwrap();
    assert_eq!(made(), 0, "this connection knows");
    root().child("b").prove_creation().await.unwrap();
    assert_eq!(made(), 1, "another one reads the note");
    bucket.lock().objects.values_mut().for_each(|note| "something else".clone_into(note));
    root().prove_creation().await.unwrap();
    assert!(made() > 1, "what is not understood proves nothing");
}

#[tokio::test]
async fn a_store_that_ignores_the_condition_is_refused_each_time() {
    for habit in [Habit::Ignores, Habit::Pretends, Habit::RefusesLate] {
        let (bucket, root) = bucket(habit);
        for _ in 0..2 {
            let error = root().child("a").claim("head/1", Bytes::from_static(b"x")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{habit:?}: {error}");
            assert!(
                error.message().contains("`If-None-Match`") && error.message().contains("s3://bucket/root"),
                "{error}"
            );
            assert!(error.remedy().unwrap().contains("upgrade"), "{error}");
            assert_eq!(bucket.lock().names(), [""; 0], "{habit:?}");
        }
    }
}

#[tokio::test]
async fn a_store_that_knows_no_condition_is_refused_by_name() {
    for answer in [UNKNOWN, UNKNOWN_CONDITION] {
        let (bucket, root) = bucket(Habit::Never(answer));
        let error = root().prove_creation().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains("`If-None-Match`"), "{error}");
        assert_eq!(bucket.lock().names(), [""; 0]);
        // Names of one's own are written all the same.
        root().put_new("log/1", vec![Bytes::from_static(b"a")]).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_may_refuse_a_taken_name_in_other_words() {
    for answer in [CONFLICT, PRECONDITION] {
        let (_, root) = bucket(Habit::Says(answer));
        root().prove_creation().await.unwrap();
        assert_eq!(root().claim("head/1", Bytes::from_static(b"x")).await.unwrap(), crate::Claim::Ours);
    }
}

#[tokio::test]
async fn a_first_answer_that_was_lost_is_no_proof_against_the_store() {
    let (bucket, root) = bucket(Habit::LosesFirstAnswer);
    root().prove_creation().await.unwrap();
    assert_eq!(bucket.lock().names().len(), 1, "the note");
}

#[tokio::test]
async fn a_refused_checksum_is_no_missing_condition() {
    for answer in [UNKNOWN_CHECKSUM, UNKNOWN] {
        let (_, root) = bucket(Habit::TakesNothing(answer));
        let error = root().prove_creation().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert!(error.message().contains("`x-amz-checksum-sha256`"), "{error}");
        assert!(error.remedy().unwrap().contains("`checksum_algorithm` to `none`"), "{error}");
    }
}

#[tokio::test]
async fn rights_to_delete_are_no_part_of_the_proof() {
    let (bucket, root) = bucket(Habit::NeverDeletes);
    root().prove_creation().await.unwrap();
    root().prove_creation().await.unwrap();
    assert_eq!(bucket.lock().names().len(), 2, "the note, and one probe");
    assert_eq!(root().check().await.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn rights_that_end_at_the_states_folder_are_enough() {
    let (bucket, root) = bucket(Habit::OnlyBelow("root/a/"));
    root().child("a").prove_creation().await.unwrap();
    assert_eq!(bucket.lock().names(), [""; 0], "no note is kept there");
    assert_eq!(root().prove_creation().await.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn memory_and_files_need_no_proof() {
    let folder = tempfile::tempdir().unwrap();
    for uri in ["memory://needs_no_proof", folder.path().to_str().unwrap()] {
        let store = open(uri, &[]).unwrap();
        store.prove_creation().await.unwrap();
        assert!(store.list("").await.unwrap().is_empty(), "{uri}");
        store.check().await.unwrap();
        assert!(store.list("").await.unwrap().is_empty(), "{uri}");
    }
    let tests = Store::from_object_store(
        Arc::new(InMemory::new()),
        "root",
        "test://root",
        &Options::default(),
        Arc::default(),
        Failpoints::none(),
    );
    tests.prove_creation().await.unwrap();
    assert!(tests.list("").await.unwrap().is_empty());
}
