//! The texts of types in descriptions of rows.
//!
//! Owns: the test whether two texts mean the same bytes and the same values.
//! Does not own: the texts (`arrays::type_text`), the rest of the row layout (`schema`).

/// True if values of both types have the same bytes and the same meaning: fields of structs may have other names, but
/// none of the names may have moved to another place. Texts that cannot be taken apart must be equal.
pub(super) fn same_values(old: &str, new: &str) -> bool {
    old == new || Type::parse(old).zip(Type::parse(new)).is_some_and(|(old, new)| old.is_same(&new))
}

#[derive(Debug, PartialEq, Eq)]
enum Type<'a> {
    Flat(&'a str),
    /// Of arrays, maps and structs; only the fields of structs have names.
    Nested(&'a str, Vec<(&'a str, Type<'a>)>),
}

impl<'a> Type<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (found, rest) = Self::read(text)?;
        rest.is_empty().then_some(found)
    }

    fn read(text: &'a str) -> Option<(Self, &'a str)> {
        for kind in ["array<", "map<", "struct<"] {
            if let Some(mut rest) = text.strip_prefix(kind) {
                let mut parts = Vec::new();
                while !rest.starts_with('>') {
                    rest = if parts.is_empty() { rest } else { rest.strip_prefix(',')? };
                    let (name, part) = if kind == "struct<" { rest.split_once(':')? } else { ("", rest) };
                    if name.contains(['<', '>', ',']) {
                        return None;
                    }
                    let (part, after) = Self::read(part)?;
                    parts.push((name, part));
                    rest = after;
                }
                return Some((Self::Nested(kind, parts), &rest[1..]));
            }
        }
        let mut depth = 0;
        let end = text.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0 && matches!(c, ',' | '>')
        });
        let (name, rest) = text.split_at(end.unwrap_or(text.len()));
        (!name.is_empty()).then_some((Self::Flat(name), rest))
    }

    fn is_same(&self, new: &Self) -> bool {
        match (self, new) {
            (Self::Nested(kind, old), Self::Nested(other, new)) => {
                let place = |name: &str| old.iter().position(|(old, _)| old.to_lowercase() == name.to_lowercase());
                let stays =
                    |i: usize, name: &str| old[i].0.to_lowercase() == name.to_lowercase() || place(name).is_none();
                kind == other
                    && old.len() == new.len()
                    && new.iter().enumerate().all(|(i, (name, part))| stays(i, name) && old[i].1.is_same(part))
            }
            _ => self == new,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_are_the_same_schema() {
        for (old, new) in [
            ("bigint", "bigint"),
            ("struct<a:string,b:int>", "struct<x:string,B:int>"),
            ("array<struct<a:decimal(10,2)>>", "array<struct<b:decimal(10,2)>>"),
            ("map<string,struct<a:int>>", "map<string,struct<b:int>>"),
            ("struct<>", "struct<>"),
            ("struct<a<b:int>", "struct<a<b:int>"),
        ] {
            assert!(same_values(old, new), "{old} {new}");
        }
        for (old, new) in [
            ("bigint", "int"),
            ("struct<a:string,b:string>", "struct<b:string,a:string>"),
            ("struct<a:string,b:string>", "struct<b:string,c:string>"),
            ("struct<a:string>", "struct<a:string,b:int>"),
            ("struct<a:decimal(10,2)>", "struct<a:decimal(10,3)>"),
            ("array<int>", "map<int,int>"),
            ("struct<a<b:int>", "struct<c:int>"),
            ("struct<a:int", "struct<b:int>"),
        ] {
            assert!(!same_values(old, new), "{old} {new}");
        }
    }
}
