"""Spark's types: what each of them is in every form that this package gives its values.

Owns: one walk over a type (`walk`), one table of atomic types (`atomic`), and a module for each form: as it travels
(`wire`), as Spark hands it over (`spark_arrow`), as rows and states have it (`values`), as a text (`ddl`).
Does not own: pandas frames (`processor.frames`), which changes of a type a state can follow (`processor.evolution`).
"""
