"""The model classes of the rehearsal, named to SGLang by SGLANG_EXTERNAL_MODEL_PACKAGE.

They are SGLang's own. Given such a package, SGLang does not import its other 250 model files, which took a third of the
start-up; it still does when a model is not among these.
"""
