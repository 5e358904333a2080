use super::*;

fn value<'a>(name: &'a str, value: &'a str) -> Declaration<'a> {
    Declaration { name, kind: Kind::Value, key: "string", map_key: None, value, ttl: false }
}

fn ending<'a>(name: &'a str, value: &'a str) -> Declaration<'a> {
    Declaration { kind: Kind::List, ttl: true, ..self::value(name, value) }
}

fn declare(catalog: &mut Catalog, declared: Declaration<'_>, may_change: bool) -> Result<Entry> {
    catalog.declare(declared, may_change, |_| Ok(())).map(|(entry, ())| entry)
}

fn reopened(catalog: &Catalog) -> Catalog {
    Catalog::parse(&catalog.text().unwrap().1).unwrap()
}

#[test]
fn a_ttl_is_a_layout() {
    let mut catalog = Catalog::default();
    let lasting = declare(&mut catalog, value("a", "bigint"), true).unwrap();
    let Entry { id, is_new, .. } = declare(&mut catalog, ending("b", "bigint"), true).unwrap();
    assert!(is_new && id != lasting.id);
    let (_, text) = catalog.text().unwrap();
    assert_eq!(
        text,
        r#"[{"id":0,"name":"a","kind":"value","key":"string","value":"bigint","encoding":2,"versions":["bigint"]},{"id":1,"name":"b","kind":"list","key":"string","value":"bigint","ttl":true,"encoding":2,"versions":["bigint"]}]"#,
    );
    let mut again = reopened(&catalog);
    assert_eq!(again.ending(), [(id, Kind::List)]);
    assert_eq!(declare(&mut again, ending("b", "bigint"), false).unwrap().id, id);
    let wrong = [
        Declaration { ttl: false, ..ending("b", "bigint") },
        Declaration { kind: Kind::Value, ..ending("a", "bigint") },
    ];
    for (declared, said) in wrong.into_iter().zip(["give ttl=", "leave ttl= out"]) {
        let error = declare(&mut again, declared, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn invariant_1_a_number_stays_with_its_state() {
    let mut catalog = Catalog::default();
    let a = declare(&mut catalog, value("a", "bigint"), true).unwrap().id;
    let b = declare(&mut catalog, value("b", "bigint"), true).unwrap().id;
    assert_ne!(a, b);
    let mut again = reopened(&catalog);
    assert_eq!(again.text().unwrap(), catalog.text().unwrap());
    assert_eq!(declare(&mut again, value("b", "bigint"), false).unwrap().id, b);
    for wrong in [
        Declaration { key: "int", ..value("a", "bigint") },
        Declaration { kind: Kind::List, ..value("a", "bigint") },
        Declaration { kind: Kind::Map, map_key: Some("int"), ..value("a", "bigint") },
    ] {
        assert_eq!(declare(&mut again, wrong, true).unwrap_err().kind(), ErrorKind::SchemaMismatch);
    }
    let error = declare(&mut again, value("c", "string"), false).unwrap_err();
    assert!(error.message().contains("a, b"), "{error}");
    assert_eq!(again.text().unwrap(), catalog.text().unwrap(), "what was refused left nothing");
}

#[test]
fn invariant_2_a_version_stays_with_its_type() {
    let mut catalog = Catalog::default();
    declare(&mut catalog, value("a", "int"), true).unwrap();
    for (open, wanted) in
        [("bigint", vec!["int", "bigint"]), ("int", vec!["int", "bigint"]), ("double", vec!["int", "bigint", "double"])]
    {
        catalog = reopened(&catalog);
        let entry = declare(&mut catalog, value("a", open), true).unwrap();
        assert_eq!(entry.versions.unwrap(), wanted, "a type that was there before is used again");
    }
    let error = declare(&mut catalog, value("a", "int"), true).unwrap_err();
    assert!(error.message().contains("`double`") && error.message().contains("`int`"), "{error}");
    let mut reader = reopened(&catalog);
    let entry = declare(&mut reader, value("a", "string"), false).unwrap();
    assert_eq!(entry.versions.unwrap().last().unwrap(), "string", "a reader reads values as another type");
    assert_eq!(reader.text().unwrap(), catalog.text().unwrap(), "and changes nothing");
}

#[test]
fn invariant_3_a_refused_declaration_leaves_nothing() {
    let mut catalog = Catalog::default();
    let refuse = |_: &Entry| Err::<(), _>(Error::schema("values of type int cannot be read as date"));
    catalog.declare(value("a", "int"), true, refuse).unwrap_err();
    assert_eq!(catalog, Catalog::default());
    declare(&mut catalog, value("a", "int"), true).unwrap();
    let mut again = reopened(&catalog);
    let error = again.declare(value("a", "date"), true, refuse).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    assert!(error.message().contains("`int`") && error.message().contains("`date`"), "{error}");
    assert_eq!(again.text().unwrap(), catalog.text().unwrap());
}

#[test]
fn states_of_earlier_releases_have_one_type_for_ever() {
    let text = r#"[{"id":0,"name":"v","kind":"value","key":"string","value":"int","encoding":1},{"id":1,"name":"l","kind":"list","key":"string","value":"array<int>","ttl":true,"encoding":1},{"id":2,"name":"m","kind":"map","key":"string","value":"map<date,int>","encoding":1}]"#;
    let mut catalog = Catalog::parse(text).unwrap();
    let map = |value| Declaration { kind: Kind::Map, map_key: Some("date"), ..self::value("m", value) };
    for (i, declared) in [value("v", "int"), ending("l", "int"), map("int")].into_iter().enumerate() {
        let entry = declare(&mut catalog, declared, true).unwrap();
        assert_eq!((usize::from(entry.id.0), entry.versions), (i, None));
    }
    for wrong in [value("v", "bigint"), ending("l", "bigint"), map("bigint")] {
        let error = declare(&mut catalog, wrong, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
        assert!(error.message().contains("bigint"), "{error}");
    }
    assert_eq!(catalog.text().unwrap().1, text, "they are kept as they are");
}

#[test]
fn the_schema_of_a_query_is_told_apart() {
    assert_eq!(Catalog::parse("keys: k string").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn values_in_another_encoding_are_not_guessed_at() {
    let mut catalog = Catalog::default();
    declare(&mut catalog, value("names", "string"), true).unwrap();
    let (_, text) = catalog.text().unwrap();
    for other in [text.replace(r#""encoding":2"#, r#""encoding":3"#), text.replace(r#","encoding":2"#, "")] {
        let error = Catalog::parse(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch, "{other}");
        assert!(error.message().contains("`names`") && error.message().contains("version"), "{error}");
    }
}
