//! The order of the layers, enforced.
//!
//! Owns: the check that a module of the core imports only from lower layers, that no files of one module import
//! each other in a cycle, and that the core does not depend on Python.
//! Does not own: the list itself. It stands in `src/lib.rs` and is read from there.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A Rust source without comments, strings and character literals, so that only code is searched for paths.
fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            b'/' if bytes.get(i + 1) == Some(&b'/') => {
                while i < bytes.len() && bytes[i] != b'\n' {
                    i += 1;
                }
            }
            b'/' if bytes.get(i + 1) == Some(&b'*') => {
                let mut depth = 0;
                while i < bytes.len() {
                    match (bytes[i], bytes.get(i + 1)) {
                        (b'/', Some(b'*')) => (depth, i) = (depth + 1, i + 2),
                        (b'*', Some(b'/')) => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            b'r' if matches!(bytes.get(i + 1), Some(b'"' | b'#')) && !ends_in_word(&out) => {
                let hashes = bytes[i + 1..].iter().take_while(|b| **b == b'#').count();
                if bytes.get(i + 1 + hashes) == Some(&b'"') {
                    let end = format!("\"{}", "#".repeat(hashes));
                    let start = i + 2 + hashes;
                    i = source[start..].find(&end).map_or(bytes.len(), |at| start + at + end.len());
                } else {
                    out.push('r');
                    i += 1;
                }
            }
            b'"' => {
                i += 1;
                while i < bytes.len() && bytes[i] != b'"' {
                    i += if bytes[i] == b'\\' { 2 } else { 1 };
                }
                i += 1;
            }
            // A character literal, not a lifetime.
            b'\'' if bytes.get(i + 1) == Some(&b'\\') || bytes.get(i + 2) == Some(&b'\'') => {
                i += if bytes[i + 1] == b'\\' { 3 } else { 2 };
                while i < bytes.len() && bytes[i] != b'\'' {
                    i += 1;
                }
                i += 1;
            }
            byte => {
                out.push(if byte.is_ascii() { byte as char } else { '?' });
                i += 1;
            }
        }
    }
    out
}

fn ends_in_word(text: &str) -> bool {
    text.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn tokens(code: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        out.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    out
}

/// Every path `crate::a::b` or `super::…` in the code, groups expanded, as absolute lists of names.
fn paths(code: &str, module: &[String]) -> Vec<Vec<String>> {
    fn walk(tokens: &[&str], at: &mut usize, prefix: Vec<String>, out: &mut Vec<Vec<String>>) {
        let mut path = prefix;
        loop {
            match tokens.get(*at).copied() {
                Some("{") => {
                    *at += 1;
                    loop {
                        walk(tokens, at, path.clone(), out);
                        match tokens.get(*at).copied() {
                            Some(",") => *at += 1,
                            Some("as") => *at += 2,
                            _ => break,
                        }
                    }
                    *at += 1;
                    return;
                }
                Some("super") if tokens.get(*at + 1) == Some(&"::") => {
                    path.pop();
                    *at += 2;
                }
                Some(name) if name.starts_with(|c: char| c.is_alphanumeric() || c == '_') => {
                    path.push(name.to_owned());
                    *at += 1;
                    if tokens.get(*at) != Some(&"::") {
                        out.push(path);
                        return;
                    }
                    *at += 1;
                }
                _ => {
                    out.push(path);
                    return;
                }
            }
        }
    }
    let tokens = tokens(code);
    let mut out = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let starts = tokens.get(at + 1) == Some(&"::") && (at == 0 || tokens[at - 1] != "::");
        match tokens[at] {
            "crate" if starts => {
                at += 2;
                walk(&tokens, &mut at, Vec::new(), &mut out);
            }
            "super" if starts => walk(&tokens, &mut at, module.to_vec(), &mut out),
            _ => at += 1,
        }
    }
    out
}

struct Source {
    /// For messages.
    path: PathBuf,
    /// `["state", "hot"]` for `src/state/hot.rs`.
    module: Vec<String>,
    imports: Vec<Vec<String>>,
}

fn sources() -> Vec<Source> {
    fn visit(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    visit(&root, &mut files);
    files.sort();
    let mut out = Vec::new();
    for path in files {
        let relative = path.strip_prefix(&root).unwrap().with_extension("");
        let mut module: Vec<String> = relative.iter().map(|p| p.to_str().unwrap().to_owned()).collect();
        let last = module.last().unwrap().clone();
        // Tests may import anything; the crate root names every module.
        if last.ends_with("_tests") || last == "tests" || relative == Path::new("lib") {
            continue;
        }
        if last == "mod" {
            module.pop();
        }
        let text = fs::read_to_string(&path).unwrap();
        let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let imports = paths(&code_only(own), &module);
        out.push(Source { path: path.strip_prefix(&root).unwrap().to_owned(), module, imports });
    }
    out
}

/// The ranks of the list in `src/lib.rs`.
fn ranks() -> BTreeMap<String, u32> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let mut ranks = BTreeMap::new();
    for line in text.lines().filter_map(|l| l.strip_prefix("//! ")) {
        let Some((rank, rest)) = line.split_once("  ") else { continue };
        let Ok(rank) = rank.parse::<u32>() else { continue };
        for name in rest.split("    ").next().unwrap().split_whitespace() {
            assert!(ranks.insert(name.to_owned(), rank).is_none(), "{name} is listed twice in src/lib.rs");
        }
    }
    assert!(ranks.len() > 5, "the list of layers in src/lib.rs was not found");
    ranks
}

#[test]
fn every_module_has_a_layer() {
    let ranks = ranks();
    for source in sources() {
        assert!(ranks.contains_key(&source.module[0]), "{} has no line in src/lib.rs", source.module[0]);
    }
}

#[test]
fn imports_go_down() {
    let ranks = ranks();
    let mut wrong = Vec::new();
    for source in sources() {
        let own = &source.module[0];
        for import in &source.imports {
            // `crate::Error` and the like are re-exports of layer 0.
            let Some(target) = import.first().filter(|t| ranks.contains_key(*t) && *t != own) else { continue };
            // Layer 0 consists of small modules that may use each other.
            if ranks[target] >= ranks[own] && ranks[own] > 0 {
                wrong.push(format!("{}: {own} imports {}", source.path.display(), import.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "imports that do not go down:\n  {}", wrong.join("\n  "));
}

#[test]
fn files_do_not_import_each_other_in_a_cycle() {
    let sources = sources();
    let known: BTreeSet<&[String]> = sources.iter().map(|s| s.module.as_slice()).collect();
    let mut edges: BTreeMap<&[String], BTreeSet<&[String]>> = BTreeMap::new();
    for source in &sources {
        let to = edges.entry(&source.module).or_default();
        for import in &source.imports {
            // The longest prefix that is a file. A folder's mod.rs only re-exports its files: not an edge.
            let Some(target) = (2..=import.len()).rev().map(|n| &import[..n]).find(|p| known.contains(p)) else {
                continue;
            };
            if target != source.module.as_slice() && !source.module.starts_with(target) {
                to.insert(known.get(target).unwrap());
            }
        }
    }
    // Remove files without open imports until none is left to remove; the rest is in a cycle or imports one.
    loop {
        let done: Vec<&[String]> = edges.iter().filter(|(_, to)| to.is_empty()).map(|(m, _)| *m).collect();
        if done.is_empty() {
            break;
        }
        for module in done {
            edges.remove(module);
            for to in edges.values_mut() {
                to.remove(module);
            }
        }
    }
    let names: Vec<String> = edges
        .iter()
        .map(|(m, to)| {
            format!("{} -> {}", m.join("::"), to.iter().map(|t| t.join("::")).collect::<Vec<_>>().join(", "))
        })
        .collect();
    assert!(names.is_empty(), "files that import each other in a cycle:\n  {}", names.join("\n  "));
}

#[test]
fn the_core_does_not_depend_on_python() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    assert!(!manifest.contains("pyo3"), "rust/core must build, test and bench without Python");
}

#[test]
fn the_search_sees_only_code() {
    let code = code_only(
        "use crate::{a::B, super_x}; // crate::no\n/* crate::no */ let s = \"crate::no\"; let r = r#\"crate::no\"#; 'x'; &'a str; super::c::d()",
    );
    let found: Vec<String> = paths(&code, &["m".into(), "f".into()]).iter().map(|p| p.join("::")).collect();
    assert_eq!(found, ["a::B", "super_x", "m::c::d"]);
}
